"""What a run leaves in the store, and how an error that crossed a JVM is told."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from semel.errors import EpochChanged, HandlerError, PeerUnavailable, StaleFence, StoreError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Put, Trim, Unit
from semel.runtime.host.lease_holder import Holder
from semel.spark import runner
from semel.spark.pipeline import Input, Pipeline
from semel.stores.memory import MemoryStore
from semel.stores.open import open_store
from semel.testing.limits import scaled


def trace(error: str) -> Exception:
    return RuntimeError(
        "[STREAM_FAILED] Query terminated with exception: \n  File 'worker.py', line 1\n"
        f"{error}\n at org.apache.spark.sql.execution.python\n"
    )


@pytest.mark.parametrize(("start", "pinned"), [("earliest", 2), ("available", 2), ("latest", None)])
def test_what_a_pipeline_has_yet_to_read_is_not_trimmed(start: str, pinned: int | None, tmp_path: Path) -> None:
    """A hub trims every few seconds, and a first batch may be long in coming."""
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    with closing(open_store(url)) as store:
        appends = [Append("hub/chat", Envelope(f"m{n}")) for n in range(5)]
        store.commit([Unit((*appends, Trim("hub/chat", 3)))])
        pipeline = Pipeline("news", (Input(url, "hub/chat"), Input("sqlite:///other.db", "hub/chat")), url, start=start)
        holder = Holder(store, "pipeline/news", job="testing", lease_s=30.0)
        holder.acquire(0.0)
        runner._Driver(cast("Any", None), pipeline, store, runner.RunOptions(checkpoint=""), holder)._pin()
        at = store.cursor("spark/news/hub/chat")
        assert (at.offset if at is not None else None) == pinned


def test_an_error_of_ours_is_found_in_the_trace() -> None:
    told = runner.explain(trace("semel.errors.StaleFence: a newer driver has taken over\n  fix: stop one"), "orders")
    assert isinstance(told, StaleFence)
    assert (told.message, told.fix) == ("a newer driver has taken over", "stop one")


@pytest.mark.parametrize(
    ("said", "current"), [("it was read in epoch 1, the store is in epoch 2: restored", 2), ("it is another store", 0)]
)
def test_a_changed_epoch_keeps_its_class(said: str, current: int) -> None:
    told = runner.explain(trace(f"semel.errors.EpochChanged: {said}\n  fix: begin again"), "orders")
    assert isinstance(told, EpochChanged)
    assert (told.message, told.fix, told.current) == (said, "begin again", current)


def test_one_that_wants_more_than_a_message_still_says_it() -> None:
    told = runner.explain(trace("semel.errors.CommitInDoubt: it may have landed\n  fix: look"), "orders")
    assert isinstance(told, StoreError)
    assert (told.message, told.fix) == ("it may have landed", "look")


def test_others_are_told_by_their_first_line() -> None:
    told = runner.explain(RuntimeError("\n\n[DIVIDE_BY_ZERO] Division by zero.\n at x"), "orders")
    assert isinstance(told, HandlerError)
    assert told.message == "pipeline 'orders' failed: [DIVIDE_BY_ZERO] Division by zero."
    assert isinstance(
        runner.explain(RuntimeError("java.net.ConnectException: Connection refused"), "x"), PeerUnavailable
    )
    bridged = RuntimeError("An error occurred while calling o1.start.\n: java.lang.IllegalStateException: no\n\tat x")
    assert runner.explain(bridged, "x").message == "pipeline 'x' failed: java.lang.IllegalStateException: no"
    original = StaleFence("mine", fix="")
    assert runner.explain(original, "orders") is original


def test_a_checkpoint_is_a_folder_of_its_own() -> None:
    assert runner.checkpoint_of("orders", "s3://bucket/checkpoints/") == "s3://bucket/checkpoints/orders"
    assert runner.checkpoint_of("orders", "checkpoints") == str(Path("checkpoints").resolve() / "orders")


class Session:
    """A session that has settings."""

    def __init__(self, **settings: str) -> None:
        self.conf = self
        self.settings = settings

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]


def test_a_start_leaves_the_settings_of_the_session_as_they_were() -> None:
    session: Any = Session(encoding="unsaferow", other="kept")
    with runner.settings_while(session, {"encoding": "avro", "idle": "false"}):
        assert session.settings == {"encoding": "avro", "idle": "false", "other": "kept"}
    assert session.settings == {"encoding": "unsaferow", "other": "kept"}
    with pytest.raises(KeyError), runner.settings_while(session, {"idle": "false"}):
        raise KeyError
    assert session.settings == {"encoding": "unsaferow", "other": "kept"}


class Query:
    """A query that makes a batch each time it is looked at."""

    id = "q1"

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.recentProgress: list[dict[str, int]] = []

    @property
    def isActive(self) -> bool:
        return not self.ended.is_set()

    @property
    def lastProgress(self) -> dict[str, int]:
        self.recentProgress.append({"batchId": len(self.recentProgress), "numInputRows": 10})
        return self.recentProgress[-1]

    def awaitTermination(self) -> None:
        assert self.ended.wait(scaled(30))

    def stop(self) -> None:
        self.ended.set()


class TestDriver:
    pipeline = Pipeline("orders", (Input("memory:", "outbox/orders"),), "memory:", to="hub/orders")

    def driver(self, store: MemoryStore, options: runner.RunOptions) -> runner._Driver:
        holder = Holder(store, runner.state_key("orders"), job="running", owner="driver", lease_s=30.0)
        holder.acquire()
        return runner._Driver(None, self.pipeline, store, options, holder)  # type: ignore[arg-type]

    def test_the_lease_is_kept_although_whoever_listens_fails(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(runner, "LOOK_S", 0.0)
        monkeypatch.setattr(runner, "REPORT_S", 0.0)
        heard: list[int] = []
        renewed: list[int] = []

        def progress(run: runner.PipelineRun) -> None:
            heard.append(run.batch)
            raise OSError("the terminal is gone")

        options = runner.RunOptions("/checkpoints/orders", progress=progress, stop=lambda: len(renewed) >= 4)
        driver = self.driver(MemoryStore(), options)
        monkeypatch.setattr(driver.holder, "renew", lambda: renewed.append(len(heard)))
        query: Any = Query()
        driver._watch(query)
        assert renewed == [0, 1, 2, 3]
        assert heard == [0, 1, 2, 3]
        assert "it could not be reported how far pipeline orders is" in caplog.text

    def test_a_relay_that_fails_is_told_like_any_other_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object, **more: object) -> None:
            raise StoreError("hub/orders cannot be written", fix="look")

        monkeypatch.setattr("semel.spark.relay.relay", fail)
        store = MemoryStore()
        with pytest.raises(StoreError, match="cannot be written"):
            self.driver(store, runner.RunOptions("/checkpoints/orders")).run()
        left = runner.last_run(store, "orders")
        assert left is not None
        assert (left.state, left.error) == ("failed", "hub/orders cannot be written")


class TestFromOutside:
    pipeline = Pipeline("orders", (Input("memory:", "outbox/orders"),), "memory:")

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    def hold(self, store: MemoryStore) -> Holder:
        holder = Holder(store, runner.state_key("orders"), job="running", owner="driver", lease_s=30.0)
        holder.acquire()
        return holder

    def leave(self, store: MemoryStore, state: str) -> None:
        now = time.time_ns() // 1000
        run = runner.PipelineRun("orders", state, "driver", 1, "/checkpoints/orders", now, now, batch=4, rows=500)
        store.commit([Unit((Put(runner.state_key("orders"), msgspec.json.encode(run)),))])

    def test_one_that_never_ran(self, store: MemoryStore) -> None:
        status = runner.status(store, self.pipeline, lambda url, stream: 12)
        assert (status.run, status.alive, status.lag) == (None, False, {"outbox/orders": 12})

    def test_one_that_runs(self, store: MemoryStore) -> None:
        self.hold(store)
        self.leave(store, "running")
        status = runner.status(store, self.pipeline, lambda url, stream: None)
        assert (status.alive, status.owner, status.lag) == (True, "driver", {"outbox/orders": None})
        assert status.run is not None
        assert status.run.rows == 500

    def test_stopping_what_does_not_run(self, store: MemoryStore) -> None:
        assert runner.ask_to_stop(store, "orders") is None
        self.hold(store).release()
        assert runner.ask_to_stop(store, "orders") is None

    def test_a_request_to_stop_names_the_driver_that_it_is_for(self, store: MemoryStore) -> None:
        holder = self.hold(store)
        row = runner.ask_to_stop(store, "orders")
        assert row is not None
        state = store.state(runner.stop_key("orders"))
        assert state is not None
        assert state.value == str(holder.fence).encode()
        assert not runner.wait_for_end(store, "orders", row.fence, 0.0)
        holder.release()
        assert runner.wait_for_end(store, "orders", row.fence, 0.0)

    @pytest.mark.parametrize("ahead_s", [-86_400, 0, 86_400])
    def test_only_the_clock_of_the_store_says_whether_a_driver_lives(self, ahead_s: int) -> None:
        now = [time.time_ns() // 1000 + ahead_s * 1_000_000]
        store = MemoryStore(clock=lambda: now[0])
        holder = self.hold(store)
        row = runner.ask_to_stop(store, "orders")
        assert row is not None
        assert not runner.wait_for_end(store, "orders", row.fence, 0.0)
        holder.renew(now=True)
        now[0] += 31_000_000
        assert runner.wait_for_end(store, "orders", row.fence, 0.0)
        assert runner.ask_to_stop(store, "orders") is None
        self.hold(store)
