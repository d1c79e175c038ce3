"""A task of Celery that charges once, however often it is delivered.

celery -A celery_shop worker --pool solo
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from celery import Celery, Task

from semel import App
from semel.errors import StoreBusy

for folder in ("queue", "queue/done", "queue/control"):
    Path(folder).mkdir(exist_ok=True)

tasks = Celery("celery_shop", broker="filesystem://")
tasks.conf.update(
    broker_transport_options={
        "data_folder_in": "queue", "data_folder_out": "queue", "processed_folder": "queue/done",
        "control_folder": "queue/control",
    },
    task_acks_late=True,  # a task whose worker dies is delivered again
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
)  # fmt: skip
shop = App("sqlite:///shop.db", name="shop")

with closing(sqlite3.connect("shop.db")) as db, db:
    db.execute("CREATE TABLE IF NOT EXISTS charge (id TEXT, cents INTEGER)")
    db.execute("CREATE TABLE IF NOT EXISTS delivery (id TEXT)")


@tasks.task(bind=True, name="charge", max_retries=None)
def charge(self: Task, order_id: str, cents: int) -> None:
    """Known by the order, not by the task: a caller that sends it twice makes two tasks."""
    with closing(sqlite3.connect("shop.db")) as db, db:
        try:
            first = shop.first(db, "charges", order_id)
        except StoreBusy as busy:  # another worker has it just now
            raise self.retry(countdown=1, exc=busy) from busy
        if first:
            db.execute("INSERT INTO charge VALUES (?, ?)", (order_id, cents))
        db.execute("INSERT INTO delivery VALUES (?)", (order_id,))
