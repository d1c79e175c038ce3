"""One trace from the entrance over the handler to what it sends, with the real SDK of OpenTelemetry."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id

from semel import App, Envelope, Outbox, retry
from semel.kernel.trace import trace_id
from semel.runtime.inbox.outbox import Destination

THEIRS = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{THEIRS}-00f067aa0ba902b7-01"


@dataclass
class Order:
    id: str


@dataclass
class Bill:
    id: str


class Telling:
    """The spans that an application has told of, as an exporter gets them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.spans if span.name == name]
        return found


@pytest.fixture
def told() -> Iterator[Telling]:
    telling = Telling()
    yield telling
    telling.provider.shutdown()


class Shop:
    """Orders make bills at another endpoint, and these are sent outside."""

    def __init__(self, folder: Path, told: Telling | None) -> None:
        self.app = App(f"sqlite:///{folder}/shop.db", name="shop")
        if told is not None:
            self.app.trace(told.provider)
        self.sent: list[Envelope] = []
        orders, bills = self.app.endpoint("orders"), self.app.endpoint("bills")

        @orders.on(Order)
        def place(order: Order, db: sqlite3.Connection, outbox: Outbox) -> None:
            outbox.publish(Bill(order.id), to="endpoint:bills")

        @bills.on(Bill)
        async def bill(bill: Bill, outbox: Outbox) -> None:
            outbox.publish(bill, to="nats:bills")

        async def send(destination: Destination, envelope: Envelope) -> None:
            self.sent.append(envelope)

        self.app.sender("nats", send)

    def traces(self, *messages: str) -> set[str | None]:
        return {entry.event.trace for message in messages for entry in self.app.store.history(message)}


@pytest.fixture
def shop(tmp_path: Path, told: Telling) -> Iterator[Shop]:
    shop = Shop(tmp_path, told)
    yield shop
    shop.app.close()


def order(id: str, **headers: str) -> Envelope:
    return Envelope(id, type="Order", data=b'{"id": "%s"}' % id.encode(), headers=headers)


def trace_of(span: ReadableSpan) -> str:
    return format_trace_id(span.context.trace_id)


def check_chain(told: Telling, *names: str) -> None:
    spans = [told.named(name) for name in names]
    for before, after in pairwise(spans):
        assert after.parent is not None
        assert after.parent.span_id == before.context.span_id, f"{after.name} comes after {before.name}"


def test_one_trace_from_the_sender_to_what_leaves_the_application(shop: Shop, told: Telling) -> None:
    shop.app.send(Order("1"), to="orders", id="order-1")
    shop.app.drain()
    check_chain(
        told, "send orders", "process orders", "send endpoint:bills", "process bills", "send nats:bills"
    )  # fmt: skip
    [trace] = {trace_of(span) for span in told.spans}
    [left] = shop.sent
    assert trace_id(left.headers) == trace
    # what leaves carries the span of its own sending, so that whoever gets it goes on from there
    assert left.headers["traceparent"].split("-")[2] == f"{told.named('send nats:bills').context.span_id:016x}"
    [bill] = {span.attributes["messaging.message.id"] for span in told.spans if span.name == "process bills"}
    assert shop.traces("order-1", str(bill), left.id) == {trace}


def test_a_message_that_comes_with_a_context_stays_in_its_trace(shop: Shop, told: Telling) -> None:
    shop.app.receive("orders", [order("1", traceparent=PARENT, tracestate="theirs=1")])
    shop.app.drain()
    check_chain(told, "receive orders", "process orders", "send endpoint:bills", "process bills", "send nats:bills")
    assert {trace_of(span) for span in told.spans} == {THEIRS}
    assert f"{told.named('receive orders').parent.span_id:016x}" == PARENT.split("-")[2]
    assert shop.sent[0].headers["tracestate"] == "theirs=1"


def test_messages_that_come_together_are_linked_to_and_keep_their_own_traces(shop: Shop, told: Telling) -> None:
    shop.app.receive("orders", [order("1", traceparent=PARENT), order("2"), order("3")])
    shop.app.drain()
    [batch] = [span for span in told.spans if "messaging.batch.message_count" in span.attributes]
    assert batch.attributes["messaging.batch.message_count"] == 3
    assert [format_trace_id(link.context.trace_id) for link in batch.links] == [THEIRS]
    by_message = {
        span.attributes["messaging.message.id"]: trace_of(span) for span in told.spans if span.name == "process orders"
    }
    assert by_message["1"] == THEIRS
    assert len({*by_message.values(), trace_of(batch)}) == 4, "each has a trace of its own"
    for message in ("2", "3"):
        begun = [
            span
            for span in told.spans
            if span.name == "receive orders" and span.attributes.get("messaging.message.id") == message
        ]
        assert [trace_of(span) for span in begun] == [by_message[message]]
        assert [link.context.span_id for link in begun[0].links] == [batch.context.span_id]


def test_handlers_that_share_a_commit_are_linked_to_by_its_span(tmp_path: Path, told: Telling) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    app.trace(told.provider)
    orders = app.endpoint("orders", share_commit=10)

    @orders.on(Order)
    def place(order: Order, db: sqlite3.Connection) -> None:
        db.execute("SELECT 1")

    parents = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 5)]
    app.receive("orders", [order(f"{parent}", traceparent=parent) for parent in parents])
    app.drain()
    app.close()
    settled = [span for span in told.spans if span.name == "settle orders"]
    linked = {link.context.trace_id for span in settled for link in span.links}
    assert linked <= {1, 2, 3, 4}
    assert len(linked) > 1, "several were there, so they have shared a commit"
    assert {span.parent for span in settled} == {None}
    assert sorted(span.context.trace_id for span in told.spans if span.name == "process orders") == [1, 2, 3, 4]


def test_the_conventions_for_messaging_are_kept(shop: Shop, told: Telling) -> None:
    shop.app.receive("orders", [order("1")])
    shop.app.drain()
    kinds = {"receive": SpanKind.CLIENT, "process": SpanKind.CONSUMER, "send": SpanKind.PRODUCER}
    for span in told.spans:
        operation, _, destination = span.name.partition(" ")
        assert span.kind is kinds[operation]
        assert span.attributes["messaging.system"] == "semel"
        assert span.attributes["messaging.operation.name"] == operation
        assert span.attributes["messaging.operation.type"] == operation
        assert span.attributes["messaging.destination.name"] == destination
        assert span.attributes["messaging.message.id"]
    process = told.named("process orders")
    assert process.attributes["semel.attempt"] == 1
    assert process.attributes["messaging.message.body.size"] == len(order("1").data)
    assert str(process.attributes["semel.handler"]).endswith("place")


def test_a_failure_names_its_class_and_nothing_of_the_message(tmp_path: Path, told: Telling) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    app.trace(told.provider)
    orders = app.endpoint("orders", errors=[retry(ValueError, waits=[0]).then("dead_letter")])

    @orders.on(Order)
    def place(order: Order, db: sqlite3.Connection) -> None:
        raise ValueError(f"no such card: 4111-{order.id}")

    app.send(Order("1111"), to="orders", id="order-1")
    app.drain()
    app.close()
    runs = [span for span in told.spans if span.name == "process orders"]
    assert [span.attributes["semel.attempt"] for span in runs] == [1, 2]
    assert {span.status.status_code for span in runs} == {StatusCode.ERROR}
    assert {span.attributes["error.type"] for span in runs} == {"ValueError"}
    assert "4111" not in "".join(span.to_json() for span in told.spans)


async def test_an_inline_delivery_is_one_trace(tmp_path: Path, told: Telling) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    app.trace(told.provider)
    sms = app.endpoint("sms", mode="inline", style="eager")

    @sms.on(Order)
    def text(order: Order, db: sqlite3.Connection) -> None:
        db.execute("SELECT 1")

    await app.deliver("sms", order("1", traceparent=PARENT))
    check_chain(told, "receive sms", "process sms")
    assert {trace_of(span) for span in told.spans} == {THEIRS}
    trace = {entry.event.trace for entry in app.store.history("1")}
    app.close()
    assert trace == {THEIRS}


@pytest.mark.parametrize("text", ["", "garbage", "00-zz-00-01", "0" * 5000, f"ff-{THEIRS}-00f067aa0ba902b7-01"])
def test_a_context_that_cannot_be_read_begins_a_new_trace(shop: Shop, told: Telling, text: str) -> None:
    shop.app.receive("orders", [order("1", traceparent=text, tracestate="\u00e4=,,=")])
    shop.app.drain()
    [trace] = {trace_of(span) for span in told.spans}
    assert trace != THEIRS
    assert shop.traces("1") == {trace}


def test_a_message_with_as_many_headers_as_it_may_have_is_handled_all_the_same(shop: Shop, told: Telling) -> None:
    full = {f"h{number}": "x" for number in range(64)}
    shop.app.receive("orders", [order("1", **full)])
    shop.app.drain()
    assert len(shop.sent) == 1


def test_the_mark_of_first_has_the_trace_of_its_caller(shop: Shop, told: Telling, tmp_path: Path) -> None:
    tracer = told.provider.get_tracer("web")
    with tracer.start_as_current_span("POST /orders") as span, sqlite3.connect(tmp_path / "shop.db") as db:
        assert shop.app.first(db, "orders", "request-1")
        with shop.app.outbox(db) as outbox:
            left = outbox.publish(Bill("1"), to="endpoint:bills")
        db.commit()
    shop.app.drain()
    trace = format_trace_id(span.get_span_context().trace_id)
    assert shop.traces("request-1", left) == {trace}
    assert told.named("send endpoint:bills").parent.span_id == span.get_span_context().span_id


# -- without OpenTelemetry


def test_without_spans_the_context_of_a_message_is_passed_on(tmp_path: Path) -> None:
    shop = Shop(tmp_path, None)
    shop.app.receive("orders", [order("1", traceparent=PARENT, tracestate="theirs=1")])
    shop.app.drain()
    [left] = shop.sent
    traces = shop.traces("1", left.id)
    shop.app.close()
    assert left.headers["traceparent"] == PARENT
    assert left.headers["tracestate"] == "theirs=1"
    assert traces == {THEIRS}


def test_without_spans_and_context_nothing_is_carried(tmp_path: Path) -> None:
    shop = Shop(tmp_path, None)
    shop.app.send(Order("1"), to="orders", id="order-1")
    shop.app.drain()
    [left] = shop.sent
    traces = shop.traces("order-1", left.id)
    shop.app.close()
    assert left.headers == {}
    assert traces == {None}


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import sqlite3
from semel import App
from semel.errors import ConfigError

app = App(sys.argv[1], name="shop")

@app.endpoint("orders").on("order")
def place(order: dict, db: sqlite3.Connection) -> None:
    print("handled", order["id"])

app.send({"id": 7}, to="orders", type="order", id="order-7")
app.drain()
print("figures", b"semel_inbox_handled_total" in app.metrics().text())
try:
    app.trace()
except ConfigError as error:
    print(error.fix)
app.close()
"""


def test_who_does_not_ask_for_it_need_not_install_it(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", ABSENT, f"sqlite:///{tmp_path}/shop.db"], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[:2] == ["handled 7", "figures True"]
    assert "semel[telemetry]" in found.stdout


def test_an_application_loads_nothing_of_it_by_itself() -> None:
    code = (
        "import sys, semel; semel.App; print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_file_may_ask_for_spans(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text('[inbox]\nstore = "memory:"\ntracing = true\n')
    app = App(config=tmp_path / "semel.toml")
    assert type(app.telemetry.spans).__name__ == "OpenTelemetrySpans"
    assert app.memory().telemetry.spans is app.telemetry.spans
    app.close()


async def test_spans_do_not_mix_when_handlers_run_at_once(tmp_path: Path, told: Telling) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    app.trace(told.provider)
    orders = app.endpoint("orders", mode="inline")
    tracer, all_in = told.provider.get_tracer("mine"), asyncio.Barrier(5)

    @orders.on(Order)
    async def place(order: Order) -> None:
        await all_in.wait()
        with tracer.start_as_current_span(f"mine {order.id}"):
            await all_in.wait()

    parents = {str(number): f"00-{number:032x}-{number:016x}-01" for number in range(1, 6)}
    await asyncio.gather(*(app.deliver("orders", order(id, traceparent=text)) for id, text in parents.items()))
    app.close()
    assert {span.name: span.context.trace_id for span in told.spans if span.name.startswith("mine")} == {
        f"mine {number}": number for number in range(1, 6)
    }
