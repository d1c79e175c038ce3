"""`semel store …` on real files."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Semel

from semel.cli import store as module
from semel.cli.store import first_since
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Advance, Append, Claim, Enqueue, Fresh, Log, Unit
from semel.kernel.position import Position
from semel.kernel.store import Store
from semel.runtime.export import exporter as export_module
from semel.runtime.export.exporter import segments
from semel.stores.memory import MemoryStore
from semel.stores.points import on_reach
from semel.stores.sqlite import SqliteStore

URL = "sqlite:///semel.db"
DAY_US = 86_400_000_000


@pytest.fixture
def filled(semel: Semel) -> SqliteStore:
    """A store with something of everything. Records 1 to 60 are ten days old, 61 to 100 are of today."""
    now = time.time_ns() // 1000
    times = [now - 10 * DAY_US]
    store = SqliteStore(URL, clock=lambda: times[0])
    append(store, 60)
    times[0] = now
    append(store, 40, begin=60)
    store.commit([Unit((Advance("reader", Position("hub/chat", 1, 30)), Log(Event(Kind.SENT, "a>b", message="m"))))])
    store.commit(
        [Unit((Enqueue("inbox/orders", "o1", Envelope(id="o1")), Enqueue("inbox/orders", "o2", Envelope(id="o2"))))]
    )
    store.commit([Unit((Claim("inbox/orders", "worker"),))])
    store.close()
    return store


def append(store: Store, count: int, begin: int = 0) -> None:
    ids = (f"m{n}" for n in range(begin, begin + count))
    [outcome] = store.commit([Unit(tuple(Append("hub/chat", Envelope(id=id, data=b"x")) for id in ids))])
    assert all(isinstance(result, Fresh) for result in outcome.results)


# -- init


def test_init_creates_a_store_once(semel: Semel) -> None:
    first = semel("store", "init", URL, "--json")
    again = semel("store", "init", URL, "--json")
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert (first.result["created"], again.result["created"]) == (True, False)
    assert first.result["store_id"] == again.result["store_id"]
    assert first.result["store"] == URL
    assert "is there already: schema" in semel("store", "init", "--store", URL).out


def test_init_says_which_store_it_chose(semel: Semel) -> None:
    ran = semel("store", "init")
    assert ran.err == "no store was named: using sqlite:///semel.db in this folder\n"
    assert ran.out.startswith("sqlite:///semel.db created: schema ")
    assert Path("semel.db").exists()
    assert semel("store", "init", "--json").err == ""


def test_init_adds_tables_to_a_database_that_has_others(semel: Semel) -> None:
    connection = sqlite3.connect("mine.db")
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    assert semel("store", "status", "--store", "sqlite:///mine.db", "--json").error["code"] == "not-a-store"
    assert semel("store", "init", "sqlite:///mine.db", "--json").result["created"] is True


def test_init_of_two_stores_at_once_is_refused(semel: Semel) -> None:
    ran = semel("store", "init", URL, "--store", "sqlite:///other.db", "--json")
    assert (ran.exit_code, ran.error["fix"]) == (2, "name one")


# -- status


def test_status_for_machines(semel: Semel, filled: SqliteStore) -> None:
    result = semel("store", "status", "--json").result
    assert result["streams"] == [{"name": "hub/chat", "epoch": 1, "head": 100, "first": 1}]
    assert result["cursors"] == [
        {"name": "reader", "position": {"stream": "hub/chat", "epoch": 1, "offset": 30}, "pins": True}
    ]
    assert result["work"] == {"inbox/orders": {"ready": 1, "claimed": 1}}
    assert (result["ledger_entries"], result["epoch"], result["exported"]) == (1, 1, {"ledger": None, "index": None})
    assert result["bytes"] > 0


def test_status_for_people(semel: Semel, filled: SqliteStore) -> None:
    lines = [line.split() for line in semel("store", "status", "--store", URL).out.splitlines()]
    for wanted in (
        ["store", URL],
        ["epoch", "1"],
        ["ledger", "1", "entries"],
        ["stream", "first", "head"],
        ["hub/chat", "1", "100"],
        ["cursor", "position", "behind", "pins"],
        ["reader", "hub/chat@1:30", "70", "yes"],
        ["queue", "claimed", "ready"],
        ["inbox/orders", "1", "1"],
    ):
        assert wanted in lines


def test_status_does_not_create_what_is_not_there(semel: Semel) -> None:
    ran = semel("store", "status", "--json")
    assert (ran.exit_code, ran.error["code"]) == (3, "store-unavailable")
    assert ran.error["fix"] == "create it: semel store init sqlite:///semel.db"
    assert not Path("semel.db").exists()


# -- where the store is


def test_the_command_line_wins_then_the_environment_then_the_file(
    semel: Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flag", "env", "file", "semel"):
        semel("store", "init", f"sqlite:///{name}.db")

    def used(*args: str) -> str:
        return str(semel("store", "status", "--json", *args).result["url"])

    assert used() == "sqlite:///semel.db"
    Path("semel.toml").write_text('[store]\nurl = "sqlite:///file.db"\n')
    assert used() == "sqlite:///file.db"
    monkeypatch.setenv("SEMEL_STORE__URL", "sqlite:///env.db")
    assert used() == "sqlite:///env.db"
    assert used("--store", "sqlite:///flag.db") == "sqlite:///flag.db"


def test_a_bad_configuration_is_an_error_of_usage_with_its_line(semel: Semel) -> None:
    Path("other.toml").write_text("[store]\nulr = 1\n")
    ran = semel("store", "status", "--config", "other.toml", "--json")
    assert (ran.exit_code, ran.error["code"]) == (2, "config")
    assert ran.error["message"] == "other.toml, line 2: there is no key 'ulr' in [store]"
    assert semel("store", "status", "--config", "none.toml").exit_code == 2


# -- migrate


def test_migrate_says_what_it_found_and_what_it_made(
    semel: Semel, filled: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = semel("store", "status", "--json").result["schema"]
    ran = semel("store", "migrate", "--json")
    assert ran.result == {"store": URL, "before": newest, "after": newest}
    assert semel("store", "migrate", "--store", URL).out == f"{URL}: schema {newest}, nothing to do\n"

    def with_a_step_more(engine: str) -> list[tuple[int, str]]:
        return [*steps, (newest + 1, "CREATE TABLE semel_new (x)")]

    from semel.stores import sqlite

    steps = sqlite.load_migrations("sqlite")
    monkeypatch.setattr(sqlite, "load_migrations", with_a_step_more)
    assert semel("store", "migrate", "--store", URL).out == f"{URL}: schema {newest} → {newest + 1}\n"


# -- sweep


def test_a_new_epoch_begins_when_told_so_and_says_why(semel: Semel, filled: SqliteStore) -> None:
    assert semel("store", "new-epoch", "--reason", "restored by hand", "--json").result == {
        "store": URL,
        "epoch": 2,
        "reason": "restored by hand",
    }
    told = semel("store", "new-epoch", "--reason", "and once more")
    assert (told.exit_code, told.out) == (0, f"{URL}: epoch 3 begins\n")
    causes = [entry["cause"] for entry in semel("store", "ledger", "--json").result["entries"]]
    assert causes[-2:] == ["restored by hand", "and once more"]
    assert semel("store", "status", "--json").result["epoch"] == 3


def test_a_new_epoch_needs_a_reason_and_a_store(semel: Semel) -> None:
    assert semel("store", "new-epoch").exit_code == 2
    assert semel("store", "new-epoch", "--reason", " ", "--json").error["message"] == "--reason is empty"
    assert semel("store", "new-epoch", "--reason", "x").exit_code == 3
    assert not Path("semel.db").exists()


def ledger_of(store: Store) -> None:
    """Two ranges of two records, then a duplicate and a failure about one message."""
    accepted, repeated = Event(Kind.ACCEPTED, "shop>hub/orders"), Event(Kind.DUPLICATE, "shop>hub/orders")
    for ids in (("o1", "o2"), ("o3", "o4"), ("o3",)):
        appends = (
            Append("hub/orders", Envelope(id=id), identity=id, on_fresh=accepted, on_duplicate=repeated) for id in ids
        )
        store.commit([Unit(tuple(appends))])
    store.commit([Unit((Log(Event(Kind.FAILED, "hub/orders>[red]", message="o1", cause="no [answer]")),))])


@pytest.fixture
def audited(semel: Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEDGER_PAGE", 2)
    store = SqliteStore(URL)
    ledger_of(store)
    store.close()


def test_the_ledger_of_a_message_holds_the_ranges_that_it_is_in(semel: Semel, audited: None) -> None:
    def kinds(*args: str) -> list[tuple[str, object]]:
        entries = semel("store", "ledger", "--json", *args).result["entries"]
        return [(entry["kind"], entry["message"] or (entry["first"], entry["last"])) for entry in entries]

    everything = [("accepted", (1, 2)), ("accepted", (3, 4)), ("duplicate", "o3"), ("failed", "o1")]
    assert kinds() == everything
    assert kinds("--last", "3") == everything[-3:]
    assert kinds("--message", "o3") == everything[1:3]
    assert kinds("--message", "o1") == [everything[0], everything[3]]
    assert kinds("--message", "o1", "--last", "1") == [everything[3]]
    assert kinds("--message", "nobody") == []


def test_the_ledgers_of_several_stores_are_one_timeline(semel: Semel, audited: None) -> None:
    other = SqliteStore("sqlite:///other.db")
    other.commit([Unit((Log(Event(Kind.HANDLED, "inbox/orders>handler", message="o1", delivery="c#7")),))])
    other.close()
    both = ("--store", URL, "--store", "sqlite:///other.db", "--store", "sqlite:///./other.db")
    result = semel("store", "ledger", "--json", "--message", "o1", *both).result
    assert result["stores"] == [URL, "sqlite:///other.db"]
    steps = [(entry["store"], entry["kind"]) for entry in result["entries"]]
    assert steps == [(URL, "accepted"), (URL, "failed"), ("sqlite:///other.db", "handled")]
    lines = semel("store", "ledger", "--message", "o1", *both).out.splitlines()
    assert lines[0].split() == ["at", "store", "node", "hop", "kind", "delivery", "attempt", "cause"]
    assert "c#7" in lines[-1]
    everything = semel("store", "ledger", *both, "--last", "3").out.splitlines()
    assert everything[0].split()[:4] == ["mark", "at", "store", "node"]
    assert semel("store", "ledger", "--store", URL, "--store", "sqlite:///none.db").exit_code == 3


def test_the_ledger_for_people(semel: Semel, audited: None) -> None:
    lines = semel("store", "ledger").out.splitlines()
    assert lines[0].split() == ["mark", "at", "node", "kind", "hop", "message", "attempt", "cause"]
    assert "hub/orders 3 to 4" in lines[3]
    assert "hub/orders>[red]" in lines[5]
    assert "no [answer]" in lines[5]
    assert semel("store", "ledger", "--message", "nobody").out == "the ledger holds no such entry\n"
    assert semel("store", "ledger", "--last", "0").exit_code == 2


def test_sweep_gives_up_what_is_old_but_for_what_a_cursor_pins(semel: Semel, filled: SqliteStore) -> None:
    ran = semel("store", "sweep", "--older-than", "7d", "--json")
    assert ran.result["trimmed"] == [{"stream": "hub/chat", "wanted": 61, "first": 31}]
    assert (ran.result["swept"]["records"], ran.result["total"]) == (30, 30)
    store = SqliteStore(URL)
    store.commit([Unit((Advance("reader", Position("hub/chat", 1, 100)),))])
    store.close()
    ran = semel("store", "sweep", "--older-than", "7d", "--store", URL)
    assert ran.out == "hub/chat: begins at 61 now\nswept 30 records\n"
    assert semel("store", "sweep", "--older-than", "7d", "--store", URL).out == "nothing to sweep\n"


def test_sweep_says_what_keeps_it_from_going_further(semel: Semel, filled: SqliteStore) -> None:
    first = semel("store", "sweep", "--older-than", "7d").out.splitlines()[0]
    assert first == (
        "hub/chat: begins at 31 now (up to 61 is old enough, but a cursor or the export still needs the rest)"
    )


def test_sweep_goes_on_until_nothing_is_left(
    semel: Semel, filled: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_ROWS", 4)
    assert semel("store", "sweep", "--older-than", "7d", "--json").result["swept"]["records"] == 30


def test_sweep_without_an_age_trims_nothing(semel: Semel, filled: SqliteStore) -> None:
    ran = semel("store", "sweep", "--json")
    assert (ran.result["trimmed"], ran.result["total"]) == ([], 0)


def test_an_age_that_is_none(semel: Semel) -> None:
    ran = semel("store", "sweep", "--older-than", "a week", "--json")
    assert (ran.exit_code, ran.error["message"]) == (2, "--older-than 'a week' is not a duration")


@pytest.mark.parametrize("raised", [False, True])
def test_the_first_record_since_a_time_is_found_by_halving(raised: bool) -> None:
    now = [0]
    store = MemoryStore(clock=lambda: now[0])
    for n in range(50):
        now[0] = 10 * n
        if n == 25 and raised:
            store.raise_epoch("test")
        append(store, 1, begin=n)
    [stream] = store.status().streams
    found = store.read("hub/chat")
    offsets = [record.position.offset for record in found.records]  # type: ignore[union-attr]
    assert first_since(store, stream, -1) == 1
    assert first_since(store, stream, 0) == 1
    assert first_since(store, stream, 100) == offsets[10]
    assert first_since(store, stream, 101) == offsets[10] + 1
    assert first_since(store, stream, 400) > offsets[39]
    assert first_since(store, stream, 400) <= offsets[40]
    assert first_since(store, stream, 10_000) == stream.head + 1


# -- export


def test_export_writes_both_datasets_once(semel: Semel, filled: SqliteStore) -> None:
    ran = semel("store", "export", "--to", "lake", "--store", URL)
    assert ran.exit_code == 0
    ledger, index = ran.out.splitlines()
    assert ledger.startswith("ledger: 1 rows in 1 files, ")
    assert ledger.endswith(" up to 0.1")
    assert index.startswith("index: 100 rows in 2 files, ")
    again = semel("store", "export", "--to", "lake", "--store", URL)
    assert again.out == "ledger: nothing new since 0.1\nindex: nothing new since 0.100\n"
    assert semel("store", "status", "--json").result["exported"] == {"ledger": "0.1", "index": "0.100"}


def test_export_for_machines_and_one_dataset_only(semel: Semel, filled: SqliteStore) -> None:
    result = semel("store", "export", "--to", "lake", "--dataset", "ledger", "--json").result
    [path] = Path("lake/raw/ledger/v1").glob("day=*/*.parquet")
    assert result["datasets"] == {
        "ledger": {
            "rows": 1,
            "bytes": path.stat().st_size,
            "files": [f"{path.parent.name}/{path.name}"],
            "mark": "0.1",
        }
    }
    assert not Path("lake/raw/index").exists()


def test_the_folder_and_the_size_of_segments_may_be_configured(
    semel: Semel, filled: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert semel("store", "export", "--json").error["message"] == "no folder for the export was named"
    Path("semel.toml").write_text('[ledger]\nexport_to = "lake"\nsegment_rows = 1000\n')
    monkeypatch.setattr(export_module, "READ_ROWS", 10)
    monkeypatch.setenv("SEMEL_LEDGER__LEASE_S", "5")
    store = SqliteStore(URL)
    append(store, 2500, begin=1000)
    store.close()
    assert semel("store", "export", "--json").exit_code == 0
    assert sorted(segment.rows for segment in segments(Path("lake"), "index"))[-1] >= 900


def test_an_unknown_dataset(semel: Semel, filled: SqliteStore) -> None:
    ran = semel("store", "export", "--to", "lake", "--dataset", "leger", "--json")
    assert (ran.exit_code, ran.error["fix"]) == (2, "use one of: all, ledger, index")


def test_a_second_export_may_refuse_to_wait(semel: Semel, filled: SqliteStore) -> None:
    from dataclasses import replace

    second = []

    def export_too(point: str) -> None:
        if point == "export.planned":
            on_reach(None)
            second.append(semel("store", "export", "--to", "lake", "--wait", "0", "--json"))

    store = SqliteStore(URL)
    on_reach(export_too)
    export_module.export(store, Path("lake"), "ledger", replace(export_module.ExportOptions(), owner="the first one"))
    store.close()
    assert (second[0].exit_code, second[0].error["code"]) == (3, "store-busy")
    assert second[0].error["message"] == "the first one is exporting the ledger of this store"


def test_an_export_can_be_ended_for_good(semel: Semel, filled: SqliteStore) -> None:
    semel("store", "export", "--to", "lake")
    assert semel("store", "export", "--forget", "--json").result == {"store": URL, "forgotten": ["ledger", "index"]}
    assert semel("store", "status", "--json").result["exported"] == {"ledger": None, "index": None}
    assert semel("store", "export", "--forget", "--dataset", "index", "--store", URL).out == "index: export ended\n"


def test_every_goes_on_until_a_signal_and_then_ends_well(semel: Semel, filled: SqliteStore) -> None:
    """The signal comes from inside the second round, so no clock decides when this test is over."""
    rounds = 0

    def count(point: str) -> None:
        nonlocal rounds
        if point != "export.listed":
            return
        rounds += 1
        store = SqliteStore(URL)
        store.commit([Unit((Log(Event(Kind.SENT, "a>b", message=f"more-{rounds}")),))])
        store.close()
        if rounds == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    on_reach(count)
    ran = semel("store", "export", "--to", "lake", "--dataset", "ledger", "--every", "10ms", "--json")
    on_reach(None)
    assert ran.exit_code == 0
    assert ran.result["datasets"]["ledger"]["rows"] == 3
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_outlives_an_error_that_may_pass(
    semel: Semel, filled: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.errors import StoreUnavailable

    real, calls = module._export_round, 0

    def flaky(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("the disk is away", fix="wait")
        os.kill(os.getpid(), signal.SIGINT)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_export_round", flaky)
    ran = semel("store", "export", "--to", "lake", "--every", "10ms")
    assert ran.exit_code == 0
    assert "the disk is away: trying again" in ran.err
    assert calls == 2
    calls = 0
    assert semel("store", "export", "--to", "lake").exit_code == 3
