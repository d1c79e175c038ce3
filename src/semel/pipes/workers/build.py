"""From a path to its workers and links: what the simulator and the runtime both run.

A hop is an outlet at one point and an inlet at the next. So is a pipe, when what lies between are bare links: then the
points between only forward, and the pipe's route goes through them. A pipe around a middle that has promises of its own
is two workers more: its sending end hands each message, packed, to the first worker of the middle, its receiving end
takes it out again, and its confirms go back over the middle's links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from semel.errors import ConfigError
from semel.kernel.dedup import GapPolicy, OnGap
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.pipes.language.options import ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Place, Point
from semel.pipes.plan.waits import waits_s
from semel.pipes.workers.inlet import InletConfig
from semel.pipes.workers.outlet import OutletConfig
from semel.pipes.workers.stage import StageConfig

APP = "app"
"""The peer under whose name the application hands messages to the first worker."""


@dataclass(frozen=True, slots=True)
class PointLink:
    """What lies between two points. Confirms go back over it with a loss of their own. `crash`: the point at its far
    end only forwards, and dies so often with a copy in hand."""

    sender: str
    receiver: str
    loss: float = 0.0
    duplicate: float = 0.0
    confirm_loss: float = 0.0
    delay: float = 0.0
    crash: float = 0.0


Route = tuple[PointLink, ...]


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """`crash`: how often it dies with a copy in hand."""

    config: StageConfig
    durable: bool = False
    crash: float = 0.0


@dataclass(frozen=True, slots=True)
class Built:
    """Messages enter at `first` and end at the handler of `last`. `routes` lead from a worker to the one that it sends
    to, `back` from there to the one that waits for a confirm: links in the order in which they are crossed."""

    name: str
    workers: tuple[WorkerPlan, ...]
    routes: dict[tuple[str, str], Route]
    back: dict[tuple[str, str], Route]
    first: str
    last: str

    @property
    def forwarders(self) -> tuple[str, ...]:
        """The points that only pass on what comes by."""
        return tuple(dict.fromkeys(link.receiver for route in self.routes.values() for link in route[:-1]))

    def worker(self, name: str) -> WorkerPlan:
        return next(worker for worker in self.workers if worker.config.name == name)


@dataclass(slots=True)
class _Draft:
    name: str
    durable: bool = False
    crash: float = 0.0
    inlets: list[InletConfig] = field(default_factory=list)
    outlets: list[OutletConfig] = field(default_factory=list)
    cascades: bool = False
    """Upstream waits until the onward ways of this worker have confirmed."""
    widest: int = 1
    """The widest window on the way here: so far messages may have changed places."""


def build(path: Path, *, report_s: float | None = None, folds: bool = True, seed: int = 0) -> Built:
    """The workers of a path. `report_s` has their meters written to the ledger that often, with the folds of their ids
    unless `folds` is False: then counting costs less, and numbers can be compared but not ids."""
    builder = _Builder(path)
    first, last = builder.path(path.steps)
    if first is last and not last.inlets:
        raise ConfigError("the path has one point and no way", fix="write where messages go, such as A -> B")
    _end(last)
    first.inlets.insert(0, InletConfig(f"{APP}>{first.name}", (APP,)))
    workers = tuple(
        WorkerPlan(
            StageConfig(
                draft.name,
                path.name,
                tuple(draft.inlets),
                tuple(draft.outlets),
                draft is last,
                report_s,
                seed + number,
                folds=folds and report_s is not None,
            ),
            draft.durable,
            draft.crash,
        )
        for number, draft in enumerate(builder.drafts)
    )
    return Built(path.name, workers, builder.routes, builder.back, first.name, last.name)


def _end(last: _Draft) -> None:
    """At the end of the path there is nothing onward to wait for but the handler."""
    last.inlets = [
        replace(inlet, confirm=ConfirmOn.PROCESSING) if inlet.confirm is ConfirmOn.CASCADE else inlet
        for inlet in last.inlets
    ]


class _Builder:
    def __init__(self, path: Path) -> None:
        self.drafts: list[_Draft] = []
        self.routes: dict[tuple[str, str], Route] = {}
        self.back: dict[tuple[str, str], Route] = {}
        self._aside: set[tuple[str, str]] = set()
        """The routes of all branches but the first: a confirm that passes by goes back over the first one."""
        self._last_point = path.last.name

    def path(self, steps: Sequence[object], ends: tuple[str, str] | None = None) -> tuple[_Draft, _Draft]:
        """The drafts of the first and the last place. `ends` renames them: the ends of a pipe's middle."""
        first_place, last_place = steps[0], steps[-1]
        entry = exit_ = None
        for at in range(0, len(steps), 2):
            place = steps[at]
            assert isinstance(place, Point | Pipe)
            begin_as = ends[0] if ends is not None and place is first_place else None
            end_as = ends[1] if ends is not None and place is last_place else None
            begins, goes_on = self._place(place, begin_as, end_as)
            if exit_ is not None:
                self._way(exit_, steps[at - 1], begins)
            entry = entry or begins
            exit_ = goes_on
        assert entry is not None
        assert exit_ is not None
        return entry, exit_

    def _place(self, place: Place, begin_as: str | None, end_as: str | None) -> tuple[_Draft, _Draft]:
        if isinstance(place, Point):
            draft = self._draft(place, begin_as or end_as)
            return draft, draft
        return self._pipe(place, begin_as, end_as)

    def _draft(self, point: Point, name: str | None = None) -> _Draft:
        middle = name is not None
        draft = _Draft(name or point.name, point.durable and not middle, 0.0 if middle else point.crash)
        self.drafts.append(draft)
        return draft

    # -- ways

    def _way(self, sender: _Draft, way: object, receiver: _Draft) -> None:
        if isinstance(way, Hop):
            self._hop(sender, way.options, receiver)
            return
        assert isinstance(way, Parallel)
        ends = [(branch.steps[0], branch.steps[-1]) for branch in way.branches]
        sender.durable = sender.durable or any(isinstance(hop, Hop) and hop.options.durable for hop, _ in ends)
        receiver.durable = receiver.durable or any(isinstance(hop, Hop) and hop.options.durable for _, hop in ends)
        self._branch(sender, way.branches[0], receiver)
        crossed = set(self.routes)
        for branch in way.branches[1:]:
            self._branch(sender, branch, receiver)
        self._aside.update(set(self.routes) - crossed)

    def _branch(self, sender: _Draft, branch: Branch, receiver: _Draft) -> None:
        """When several branches have no point, all but the first end at an extra inlet of the receiver, because two
        that end at the same place need different names."""
        at = sender
        for number in range(0, len(branch.steps), 2):
            hop = branch.steps[number]
            assert isinstance(hop, Hop)
            goes_on = number + 1 < len(branch.steps)
            point = branch.steps[number + 1] if goes_on else None
            then = self._draft(point) if isinstance(point, Point) else self._entry(at, receiver)
            self._hop(at, hop.options, then)
            at = then
        if at is not receiver:
            self._hop(at, Options(), receiver)

    def _entry(self, sender: _Draft, receiver: _Draft) -> _Draft:
        if (sender.name, receiver.name) not in self.routes:
            return receiver
        entries = sum(name.startswith(f"{receiver.name}~") for _, name in self.routes)
        return self._draft(Point(f"{receiver.name}~{entries + 2}"))

    def _hop(self, sender: _Draft, options: Options, receiver: _Draft, route: Route | None = None) -> None:
        name = f"{sender.name}>{receiver.name}"
        sender.durable = sender.durable or options.durable
        receiver.durable = receiver.durable or options.durable
        if sender.durable:
            options = _until_confirmed(name, options)
        confirm = self._confirm(sender, options, receiver)
        _check_window(name, options, sender.widest)
        receiver.widest = max(receiver.widest, sender.widest, options.window)
        sender.outlets.append(_outlet(name, receiver.name, options))
        receiver.inlets.append(_inlet(name, sender.name, options, confirm))
        self._join(sender, receiver, route or (_link(sender.name, receiver.name, options),))

    def _join(self, sender: _Draft, receiver: _Draft, route: Route) -> None:
        self.routes[sender.name, receiver.name] = route
        self.back[receiver.name, sender.name] = tuple(reversed(route))

    def _confirm(self, sender: _Draft, options: Options, receiver: _Draft) -> ConfirmOn | None:
        if options.resends:
            self._check_processing(options, receiver)
            confirm: ConfirmOn | None = options.confirm
        elif sender.cascades:
            confirm = ConfirmOn.CASCADE
        else:
            confirm = None
        receiver.cascades = receiver.cascades or confirm is ConfirmOn.CASCADE
        return confirm

    def _check_processing(self, options: Options, receiver: _Draft) -> None:
        if options.confirm is ConfirmOn.PROCESSING and receiver.name != self._last_point:
            raise ConfigError(
                f"confirm=processing at {receiver.name}, which passes messages on and processes none",
                fix="use confirm=cascade there, and confirm=processing at the end of the path",
            )

    # -- pipes

    def _pipe(self, pipe: Pipe, begin_as: str | None = None, end_as: str | None = None) -> tuple[_Draft, _Draft]:
        sender = self._draft(pipe.sender, begin_as)
        route = _bare_route(pipe.inner)
        if route is not None:
            receiver = self._draft(pipe.receiver, end_as)
            self._hop(sender, pipe.options, receiver, route)
            return sender, receiver
        crossed, before = set(self.routes), len(self.drafts)
        begins, ends = self.path(pipe.inner.steps, (f"{sender.name}~out", f"{end_as or pipe.receiver.name}~in"))
        _check_middle(self.drafts[before:])
        middle = [route for key, route in self.routes.items() if key not in crossed and key not in self._aside]
        receiver = self._draft(pipe.receiver, end_as)
        self._around(sender, begins, ends, receiver, pipe.options)
        self.back[receiver.name, sender.name] = tuple(link for route in reversed(middle) for link in reversed(route))
        return sender, receiver

    def _around(self, sender: _Draft, begins: _Draft, ends: _Draft, receiver: _Draft, options: Options) -> None:
        name = f"{sender.name}>{receiver.name}"
        confirm = self._confirm(sender, options, receiver)
        if sender.durable or receiver.durable or options.durable:
            raise ConfigError(
                f"the pipe {name} goes through a middle with promises of its own, so its ends cannot be durable",
                fix="make the hops of the middle durable instead, or leave the middle its bare links",
            )
        ends.inlets = [_no_further(inlet) for inlet in ends.inlets]
        sender.outlets.append(_outlet(name, begins.name, options, packs=True))
        begins.inlets.append(InletConfig(f"{sender.name}>{begins.name}", (sender.name,)))
        ends.outlets.append(OutletConfig(f"{ends.name}>{receiver.name}", receiver.name))
        inlet = _inlet(name, ends.name, options, confirm)
        receiver.inlets.append(replace(inlet, unpacks=True, confirms_carrier=ends.durable))
        self._join(sender, begins, (PointLink(sender.name, begins.name),))
        self._join(ends, receiver, (PointLink(ends.name, receiver.name),))


def _check_middle(drafts: Sequence[_Draft]) -> None:
    """Inside a pipe each attempt is a message of its own, and none of them has an index of the producer's."""
    hops = [inlet.hop for draft in drafts for inlet in draft.inlets if inlet.dedup is DedupBy.SESSION]
    if hops:
        raise ConfigError(
            f"dedup=session on {hops[0]}, inside a pipe: what the pipe sends through its middle has no index there",
            fix="use dedup=strict or dedup=id inside the pipe, and dedup=session on a durable hop behind it",
        )


def _no_further(inlet: InletConfig) -> InletConfig:
    """At the end of a pipe's middle: what it hands over to the pipe has come through, and a cascade ends here."""
    return replace(inlet, confirm=ConfirmOn.RECEIPT) if inlet.confirm is ConfirmOn.CASCADE else inlet


def _bare_route(inner: Path) -> Route | None:
    """The links of a middle that promises nothing; None if it does more than forward."""
    links: list[PointLink] = []
    for at in range(1, len(inner.steps), 2):
        way, sender, receiver = inner.steps[at], inner.steps[at - 1], inner.steps[at + 1]
        if not isinstance(way, Hop) or not _is_bare(way.options):
            return None
        if not isinstance(sender, Point) or not isinstance(receiver, Point):
            return None
        is_end = at + 2 == len(inner.steps)
        if not is_end and receiver.durable:
            return None
        link = _link(sender.name, receiver.name, way.options)
        links.append(link if is_end else replace(link, crash=receiver.crash))
    return tuple(links)


def _is_bare(options: Options) -> bool:
    return set(options.stated()) <= {"loss", "duplicate", "confirm_loss", "delay"}


def _until_confirmed(hop: str, options: Options) -> Options:
    """A durable worker lets go of a message when the next one has confirmed it, and not before."""
    if options.repeats:
        raise ConfigError(
            f"the hop {hop} begins at a durable point and has repeats",
            fix="leave repeats out: a durable point sends again until it is confirmed",
        )
    return options if options.resends else replace(options, retries=math.inf)


def _resend(options: Options) -> ResendPolicy | None:
    if not options.resends:
        return None
    assert options.retries is not None
    retries = None if math.isinf(options.retries) else int(options.retries)
    second_s = min(options.timeout * options.backoff, options.longest_wait)
    retry = RetryPolicy(retries, second_s, options.backoff, options.longest_wait, options.jitter, then="discard")
    return ResendPolicy(options.window, options.timeout, retry)


def _check_window(hop: str, options: Options, widest: int) -> None:
    """A receiver in the producer's order does not confirm what comes early. A narrower window could fill with those,
    and the one that they all wait for would wait behind them."""
    if options.dedup is DedupBy.SESSION and options.resends and options.window < widest:
        raise ConfigError(
            f"window={options.window} on {hop} is narrower than the {widest} of a hop before it, and its receiver "
            "keeps the producer's order: the message that all others wait for could wait behind them",
            fix=f"write window={widest} or more on {hop}",
        )


def _outlet(hop: str, peer: str, options: Options, *, packs: bool = False) -> OutletConfig:
    floors = options.dedup is DedupBy.STRICT and options.resends
    return OutletConfig(hop, peer, _resend(options), options.repeats, packs=packs, floors=floors)


def _inlet(hop: str, peer: str, options: Options, confirm: ConfirmOn | None) -> InletConfig:
    """A strict inlet waits for what the sender still has, and goes on without what the sender has given up."""
    ends = options.attempts is not None
    patience = options.timeout + (waits_s(options, endless=False) if ends else options.timeout)
    gap = GapPolicy(OnGap.SKIP if ends else OnGap.WAIT, max(patience, 2 * options.delay + 1e-9))
    return InletConfig(hop, (peer,), confirm, options.dedup, options.keep, options.size, gap=gap)


def _link(sender: str, receiver: str, options: Options) -> PointLink:
    return PointLink(sender, receiver, options.loss, options.duplicate, options.confirm_loss, options.delay)
