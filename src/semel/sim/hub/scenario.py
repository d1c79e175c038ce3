"""What a seed decides of a hub: which scene is played, in which weather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from semel.kernel.ledger import Event, Kind, fold_ids
from semel.pubsub.hub import spills
from semel.pubsub.hub.calls import HubInfo, Summarize
from semel.pubsub.hub.floors import read_floor
from semel.pubsub.hub.machine import HubOptions
from semel.sim.hub.callers import Caller, GuestCaller, QuestionCaller
from semel.sim.hub.members import StormClient
from semel.sim.hub.node import BEGIN_S, HUB
from semel.sim.hub.storm import HubStorm
from semel.sim.world import SeededWorld

# -- looks at a hub from outside: what clients were acknowledged and received, what REST answered, what the store holds
#
# nothing lost      what was written while a client was in the group has come to it, in the order of the stream
# nothing doubled   each message stands once in the stream, and comes once on a socket
# nothing else      what is not for a client does not come to it
# the ledger        tells each delivery that was acknowledged once, and all that was due to sessions that have ended
# nothing left      when everybody has gone, neither the store nor a node keeps anything of them


def check_promises(storm: HubStorm) -> Iterator[str]:
    yield from (f"{key} is done and not written" for key in sorted(storm.caller.done - storm.books.offsets.keys()))
    yield from (f"nobody answered {call}" for _, _, call in storm.caller.open.values())
    yield from (f"{body} stands at {at}" for body, at in storm.books.offsets.items() if len(at) > 1)
    for client in storm.clients:
        yield from (f"{client.name} was refused for good: {reason}" for reason in client.refusals)
        yield from (f"{client.name} got no answer to {request}" for request in client.unacked.values())
        yield from _check_received(storm, client)
        yield from _check_confirmed(storm, client)


def _check_received(storm: HubStorm, client: StormClient) -> Iterator[str]:
    """Before a join was acknowledged nothing is promised, and what comes all the same is no harm."""
    due, got = storm.due(client), [body for _, body in client.got]
    received = [body for body in got if body in set(due)]
    for offset, body in client.got:
        if storm.books.offsets[body] != [offset]:
            yield f"{client.name} got {body} as another"
        target = storm.books.targets[body]
        if client.is_own_quiet(body) or any(
            stay.group == target and stay.out < offset <= stay.again for stay in client.stays
        ):
            yield f"{client.name} got {body}, which it should not"
    if received != due:
        yield f"{client.name} got {len(received)} of {len(due)}: {sorted(set(due) - set(got))[:5]}"


def _check_confirmed(storm: HubStorm, client: StormClient) -> Iterator[str]:
    """Each delivery is written down once, and none that was not made. What was not promised may be held for delivered
    by a node that did not know better."""
    ids, before = storm.books.ids, 0
    got = {offset for offset, _ in client.got}
    due = {storm.books.offsets[body][0] for body in storm.due(client)}
    for event in _confirmed_by(storm, client):
        first, last = event.first or 0, event.last or 0
        logged = f"{event.n} of {first} to {last} confirmed by {client.name}"
        inside = {offset for offset in ids if first <= offset <= last}
        if not before < first <= last:
            yield f"{logged} after {before}"
        if event.n > len(inside & got) + len(inside - due - got):
            yield f"{logged}, but only {len(inside & got)} were had"
        if event.n == len(inside) and event.fold != fold_ids(ids[offset] for offset in inside):
            yield f"{logged}, but those were others"
        before = last


def check_all_confirmed(storm: HubStorm) -> Iterator[str]:
    """What was due, came and was acknowledged is in the ledger: else an audit would take it for lost."""
    for client in storm.clients:
        left = {storm.books.offsets[body][0] for body in storm.due(client)}
        for event in _confirmed_by(storm, client):
            inside = {offset for offset in left if (event.first or 0) <= offset <= (event.last or 0)}
            if event.n < len(inside):
                yield f"only {event.n} of {sorted(inside)} confirmed by {client.name}"
            left -= inside
        if left:
            yield f"{sorted(left)} never confirmed by {client.name}"


def _confirmed_by(storm: HubStorm, client: StormClient) -> list[Event]:
    events = storm.books.ledger()
    return [event for event in events if event.kind is Kind.CONFIRMED and event.peer == client.connection]


def check_ended(storm: HubStorm) -> Iterator[str]:
    """As an audit does it: the ledger tells of all that was due to visitors whose sessions have ended."""
    books, events = storm.books, storm.books.ledger()
    for name in sorted(books.ends.keys() & storm.caller.visitors.keys()):
        (start, groups), end = books.begins[name], books.ends[name]
        due = [books.ids[at] for at, body in books.written() if start < at <= end and books.targets[body] in groups]
        logged = [event for event in events if event.peer == name and event.hop.endswith(">sub")]
        fold = 0
        for event in logged:
            fold ^= event.fold or 0
        if sum(event.n for event in logged) != len(due) or fold != fold_ids(due):
            ranges = [(event.kind.name, event.first, event.last, event.n) for event in logged]
            yield f"{len(due)} were due to {name}, and the ledger tells of {ranges}"


def check_empty(storm: HubStorm) -> Iterator[str]:
    store = storm.books.store
    for kind in ("session", "acks", "spill"):
        yield from (f"{key} is left" for key, _ in store.states(f"hub/{HUB}/{kind}/"))
    floors = {key.rpartition("/")[2]: read_floor(state) for key, state in store.states(f"hub/{HUB}/floor/")}
    if len(floors) != len(storm.nodes):
        yield f"floors of {sorted(floors)}, but {len(storm.nodes)} nodes live"
    head = store.head(f"hub/{HUB}").offset
    yield from (f"{node} pins {floor} of {head}" for node, floor in floors.items() if floor < head)
    for node in storm.nodes:
        known = storm.ask(node, Summarize()).rows
        if known != (HubInfo(0, 0, 0, 0),):
            yield f"{node.node} still knows {known}"
        kept = {part: count for part, count in node.hub.in_flight().items() if count}
        if kept:
            yield f"{node.node} keeps {kept}"


# -- what is played

OPTIONS = HubOptions(is_shared=True, lease_s=10.0, trim_s=2.0, recovery_s=400.0)
AGED = replace(OPTIONS, backlog_age_s=3.0)
FEW_ROWS = 3
FAULTS = (0.0, 0.02, 0.05, 0.1)


@dataclass(frozen=True, slots=True)
class Scene:
    """`steps` things happen and `messages` are published. Then everybody acknowledges, or waits, or leaves. With
    `small_rows` what leaves the stream takes several commits, rows and pages."""

    steps: int
    messages: int
    then: str = "acknowledge"
    wait_s: float = 0.0
    caller: type[Caller] = Caller
    options: HubOptions = field(default=OPTIONS)
    small_rows: bool = False


SCENES = {
    "members": Scene(600, 60),
    "emptied": Scene(300, 30, then="leave"),
    "guests": Scene(900, 80, caller=GuestCaller),
    "late guests": Scene(
        900, 80, then="wait", wait_s=36, caller=GuestCaller,
        options=replace(OPTIONS, recovery_s=12.0, backlog_count=5),
    ),
    "questions": Scene(600, 40, then="stop", caller=QuestionCaller),
    "questions, small pages": Scene(
        600, 40, then="stop", caller=QuestionCaller, options=replace(OPTIONS, read_rows=2)
    ),
    "aged": Scene(600, 80, options=AGED, small_rows=True),
    "aged guests": Scene(
        900, 80, then="wait", wait_s=120, caller=GuestCaller, options=replace(AGED, recovery_s=60.0), small_rows=True
    ),
    "aged, emptied": Scene(300, 40, then="leave", options=AGED, small_rows=True),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HubWeather:
    scene: str
    faults: float
    few_rows: bool
    restless: bool


def draw_hub_weather(seed: int) -> HubWeather:
    random = Random(f"hub {seed}")
    return weather_of(seed, random.choice(list(SCENES)), random.choice(FAULTS))


def weather_of(seed: int, scene: str, faults: float) -> HubWeather:
    """Every other few seeds read few records at once, so that reading takes longer than what happens meanwhile."""
    return HubWeather(scene, faults, bool(seed // 4 % 2), bool(seed // 8 % 2))


class HubScenario:
    def __init__(self, seed: int, log: Callable[[str], None] | None = None, weather: HubWeather | None = None) -> None:
        self._drawn = weather or draw_hub_weather(seed)
        self._scene = SCENES[self._drawn.scene]
        self.world = SeededWorld(seed, log)
        self.weather: dict[str, Any] = asdict(self._drawn)

    def run(self) -> dict[str, float]:
        with _small_rows() if self._scene.small_rows else _as_is():
            storm = self._storm()
            storm.run(self._scene.steps, self._scene.messages)
            for wrong in self._check(storm):
                self.world.violated(wrong)
        return {
            "written": len(storm.books.ids),
            "delivered": sum(len(client.got) for client in storm.clients),
            "answered": storm.caller.answered,
            "killed": self.world.seen["node.killed"],
            "virtual_s": round(self.world.now - BEGIN_S, 3),
        }

    def _storm(self) -> HubStorm:
        options = replace(self._scene.options, read_rows=FEW_ROWS) if self._drawn.few_rows else self._scene.options
        restless = 0.9 if self._drawn.restless else 0.3
        return HubStorm(self.world, options, self._drawn.faults, restless, self._scene.caller)

    def _check(self, storm: HubStorm) -> Iterator[str]:
        match self._scene.then:
            case "wait":
                storm.wait(self._scene.wait_s)
            case "leave":
                storm.empty()
                yield from check_empty(storm)
                yield from check_promises(storm)
            case "stop":
                yield from check_promises(storm)
            case _:
                yield from check_promises(storm)
                storm.acknowledge_all()
                yield from check_all_confirmed(storm) if self._scene.caller is Caller else ()
        if self._scene.caller is GuestCaller:
            yield from check_ended(storm)


@contextmanager
def _as_is() -> Iterator[None]:
    yield


@contextmanager
def _small_rows() -> Iterator[None]:
    small = {"ROW_COUNT": 3, "COMMIT_BYTES": 5 * spills.OVERHEAD_BYTES, "PAGE": 2}
    usual = {name: getattr(spills, name) for name in small}
    vars(spills).update(small)
    try:
        yield
    finally:
        vars(spills).update(usual)
