"""A function for AWS Lambda behind an SQS queue: no process of ours runs, and each order is charged once.

Its database outlives the function: PostgreSQL there, a SQLite file here.
"""

import json
import sqlite3
from contextlib import closing
from typing import Any

from semel import App

DATABASE = "shop.db"
shop = App(f"sqlite:///{DATABASE}", name="shop")

with closing(sqlite3.connect(DATABASE)) as db, db:
    db.execute("CREATE TABLE IF NOT EXISTS charge (id TEXT, cents INTEGER)")


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Only what failed is delivered again: the queue has ReportBatchItemFailures switched on."""
    failed = []
    for record in event["Records"]:
        try:
            charge(json.loads(record["body"]))
        except Exception as error:
            print(f"{record['messageId']} failed: {error}")
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}


def charge(order: dict[str, Any]) -> None:
    """Known by the id of the order: SQS gives a new messageId to what a sender sends again."""
    with closing(sqlite3.connect(DATABASE)) as db, db:
        if shop.first(db, "charges", order["id"], keep_s=14 * 24 * 3600):
            db.execute("INSERT INTO charge VALUES (?, ?)", (order["id"], order["cents"]))
