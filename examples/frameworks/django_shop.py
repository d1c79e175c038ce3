"""A shop in one file of Django: a request is an order, and its card is charged once.

semel inbox init django_shop:shop          once, as `migrate` is for your own tables
python django_shop.py runserver            takes orders
semel inbox run django_shop:shop           charges them
"""

import json
import sys
from dataclasses import dataclass

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from semel import App
from semel.errors import StoreBusy
from semel.runtime.inbox.providers import django_transaction

DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}

if not settings.configured:
    settings.configure(
        DEBUG=False, ALLOWED_HOSTS=["*"], SECRET_KEY="for tests", ROOT_URLCONF=__name__, DATABASES={"default": DATABASE}
    )
    django.setup()

shop = App("sqlite:///shop.db", name="shop")
shop.provide(BaseDatabaseWrapper, django_transaction())
orders = shop.endpoint("orders")

with connections["default"].cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT, cents INTEGER)")
    cursor.execute("CREATE TABLE IF NOT EXISTS charge (id TEXT, cents INTEGER)")


@dataclass
class Order:
    id: str
    cents: int


@orders.on(Order)
def charge(order: Order, db: BaseDatabaseWrapper) -> None:
    """Runs once for each order, inside `transaction.atomic`: models may be used as ever."""
    with db.cursor() as cursor:
        cursor.execute("INSERT INTO charge VALUES (%s, %s)", [order.id, order.cents])


def place(request: HttpRequest) -> HttpResponse:
    order, key = Order(**json.loads(request.body)), request.headers["Idempotency-Key"]
    try:
        with transaction.atomic():
            db = transaction.get_connection()
            first = shop.first(db, "requests", key)
            if first:
                with db.cursor() as cursor:
                    cursor.execute("INSERT INTO orders VALUES (%s, %s)", [order.id, order.cents])
                with shop.outbox(db) as outbox:
                    outbox.publish(order, to="endpoint:orders", id=order.id)
    except StoreBusy:  # another request with the same key is under way
        return JsonResponse({"error": "busy"}, status=409, headers={"Retry-After": "1"})
    return JsonResponse({"order": order.id, "is_new": bool(first)}, status=202)


urlpatterns = [path("orders", place)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
