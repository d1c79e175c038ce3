"""What a pipeline is: where messages come from, what happens to them on the way, and where they go.

A definition is a plain value. It comes from `[[pipeline]]` in `semel.toml` or is built in Python; `build` turns it into
a query, and `semel.spark.runner` runs that.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from semel.errors import ConfigError, SemelError
from semel.kernel.dedup import GapPolicy, OnGap
from semel.kernel.text import check_stream, quote_part
from semel.stores.open import absolute_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semel.config import OrderSection, PipelineSection

FORGET_S = 7 * 24 * 3600.0
_GAP = GapPolicy(after_s=60.0)
DEDUPE = ("id", "index")
EARLIEST = "earliest"
STARTS = (EARLIEST, "latest", "available")
_NAME = re.compile(r"[a-z0-9_~-][a-z0-9._~-]{0,127}")
PYTHON_NAME = "pipeline"
"""What a Python file with a pipeline calls it."""


@dataclass(frozen=True, slots=True)
class Input:
    """A stream of a store."""

    store: str
    stream: str

    def __post_init__(self) -> None:
        check_stream(self.stream)


@dataclass(frozen=True, slots=True)
class Order:
    """Messages of a session pass in the order of their index.

    When one does not come, the gap policy decides: "wait", "skip", which gives it up after a minute, or
    `GapPolicy(OnGap.SKIP, after_s=30)`. `buffer` is how many of a session wait for it at most. Where gaps are skipped,
    a session that was silent for `forget_s` is forgotten; where they are waited for it keeps its place. Ids of messages
    without a session are remembered for `forget_s` either way.
    """

    gap: GapPolicy = _GAP
    buffer: int = 10_000
    forget_s: float = FORGET_S

    if TYPE_CHECKING:

        def __init__(
            self,
            gap: GapPolicy | Literal["wait", "skip"] = _GAP,
            buffer: int = 10_000,
            forget_s: float = FORGET_S,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", _policy(self.gap))
        if self.buffer < 1 or self.forget_s <= 0:
            raise ConfigError("an order needs a buffer and a memory", fix="give buffer and forget_s positive numbers")
        if self.gap.then is OnGap.ASK:
            raise ConfigError(
                "a pipeline cannot ask a sender again: it reads what is stored", fix='use gap = "wait" or "skip"'
            )


def _policy(given: object) -> GapPolicy:
    if isinstance(given, GapPolicy):
        return given
    if isinstance(given, OnGap) or given in [each.value for each in OnGap]:
        return GapPolicy(OnGap(given), _GAP.after_s)
    fix = 'use gap="wait" or gap="skip"; with a time of its own, gap=GapPolicy(OnGap.SKIP, after_s=30)'
    raise ConfigError(f"{given!r} is no way to treat a gap", fix=fix)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline. Its output goes into the stream `spark/<name>` of `store`, and from there on to the stream `to`;
    or into the user's own `table`, or into the Parquet folder `path`. Where `to` is a hub, its clients get it: those
    that the message has as its target, or else `target`, or else all.

    Duplicates are recognised by the id of the message, which the store remembers; with `dedupe="index"` also by the
    index within the session, which never lets an older one pass. `order` does that as well, and loses none.

    It begins at `start` and reads up to the offset `until`, or on and on. One that `replays` another pipeline makes the
    same messages as that one, under its ids, into a stream of its own.
    """

    name: str
    inputs: tuple[Input, ...]
    store: str
    dedupe: str = "id"
    order: Order | None = None
    transform: str | Callable[[DataFrame], DataFrame] | None = None
    handler: str | Callable[..., Any] | None = None
    to: str | None = None
    target: str = ""
    table: str | None = None
    key: str | None = None
    path: str | None = None
    start: str = EARLIEST
    until: int | None = None
    replays: str | None = None
    max_rows_per_batch: int = 100_000
    every_s: float = 1.0
    lease_s: float = 30.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be the name of a pipeline", fix="use a-z 0-9 . _ ~ - and at most 128 of them"
            )
        if self.to is not None:
            check_stream(self.to)
        for problem, fix in self._problems():
            raise ConfigError(f"pipeline {self.name!r}: {problem}", fix=fix)

    def _problems(self) -> Iterable[tuple[str, str]]:
        if not self.inputs:
            yield "it reads from nowhere", 'name a stream: from = "outbox/orders"'
        if len(set(self.inputs)) < len(self.inputs):
            yield "it reads the same stream twice", "name each stream once"
        if self.dedupe not in DEDUPE:
            yield f"there is no dedupe {self.dedupe!r}", f"use one of: {', '.join(DEDUPE)}"
        if self.start not in STARTS and not self.start.isdigit():
            yield f"it cannot start at {self.start!r}", f"use one of: {', '.join(STARTS)}, or an offset"
        if self.order is not None and self.start != EARLIEST:
            yield (
                f"it has an order and starts at {self.start!r}, but an order begins with index 1 of each session",
                f"let it start at {EARLIEST!r}, or leave the order out",
            )
        if self.max_rows_per_batch < 1 or self.every_s < 0 or self.lease_s < 1:
            yield "a number is too small", "max_rows_per_batch from 1, every_s from 0, lease_s from 1"
        places = [name for name in ("to", "table", "path") if getattr(self, name) is not None]
        if len(places) > 1:
            yield f"its output has two places: {' and '.join(places)}", "keep one; make a second pipeline for the other"
        if self.path is not None and len(self.inputs) > 1 and self.order is None and self.dedupe == "id":
            yield (
                "Parquet files have no ids to tell by, so a message that two of its inputs hold would be there twice",
                "give it an order, which tells copies apart, or read from one stream",
            )
        if self.target and not (self.to or "").startswith("hub/"):
            yield f"target {self.target!r} needs a hub to write to", 'give it one: to = "hub/<hub>"'
        if (self.table is None) != (self.key is None):
            yield "a table and its key belong together", "give both, or neither"
        if self.output in {each.stream for each in self.inputs if each.store == self.store}:
            yield f"it would read its own output {self.output}", "read from another stream"

    @property
    def output(self) -> str:
        """The stream that the sink writes."""
        return f"spark/{quote_part(self.name)}"

    @property
    def makes_ids_as(self) -> str:
        """The name from which the ids of new messages follow."""
        return self.replays or self.name

    @property
    def hops(self) -> tuple[str, ...]:
        """What the ledger calls the way into this pipeline, one for each input."""
        return tuple(f"{each.stream}>{self.output}" for each in self.inputs)


def build(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """The query up to its sink: read, put together, ordered, handled."""
    from semel.spark.handlers import apply_handler
    from semel.spark.transforms import dedupe_by_index, merge_regions

    send_files_along()
    frames = [_read(spark, pipeline, each) for each in pipeline.inputs]
    order = pipeline.order
    if order is not None:
        frame = merge_regions(
            *frames,
            gap="skip" if order.gap.then is OnGap.SKIP else "wait",
            after_s=order.gap.after_s,
            buffer=order.buffer,
            forget_s=order.forget_s,
            verdicts=True,
            waiting=True,
        )
    else:
        frame = frames[0]
        for more in frames[1:]:
            frame = frame.unionByName(more)
        if pipeline.dedupe == "index":
            frame = dedupe_by_index(frame, verdicts=True)
    if pipeline.transform is not None:
        frame = _transformed(frame, pipeline)
    if pipeline.handler is not None:
        frame = apply_handler(frame, pipeline.handler, pipeline=pipeline.makes_ids_as)
    return frame


def _read(spark: SparkSession, pipeline: Pipeline, each: Input) -> DataFrame:
    options = {
        "store": absolute_url(each.store),
        "stream": each.stream,
        "startingPosition": pipeline.start,
        "maxRowsPerBatch": str(pipeline.max_rows_per_batch),
    }
    if pipeline.until is not None:
        options["endingPosition"] = str(pipeline.until)
    return spark.readStream.format("semel").options(**options).load()


def _transformed(frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    from pyspark.sql import DataFrame as Frame

    from semel.spark.handlers import load_function

    spec = pipeline.transform
    function: Any = load_function(spec) if isinstance(spec, str) else spec
    changed = function(frame)
    if not isinstance(changed, Frame):
        raise ConfigError(
            f"pipeline {pipeline.name!r}: its transform gave a {type(changed).__name__}, not a DataFrame",
            fix="return the DataFrame that the query goes on with",
        )
    return changed


def sink_options(pipeline: Pipeline, fence: int | None = None) -> dict[str, str]:
    """What `writeStream.format("semel")` needs to know."""
    given = {
        "store": absolute_url(pipeline.store),
        "pipeline": pipeline.name,
        "to": pipeline.to,
        "target": pipeline.target or None,
        "table": pipeline.table,
        "key": pipeline.key,
        "path": pipeline.path,
        "idsAs": pipeline.makes_ids_as if pipeline.makes_ids_as != pipeline.name else None,
        "fence": None if fence is None else str(fence),
    }
    return {name: value for name, value in given.items() if value is not None}


def replay(
    pipeline: Pipeline, name: str | None = None, *, start: str | None = None, until: int | None = None
) -> Pipeline:
    """The pipeline over a range of its inputs, under a name of its own: a backfill, or a check of what was made.

    Once made it stays: the same replay again adds nothing. It writes to its own stream and nowhere else, unless it
    keeps the name of the original; then what is there already is found to be there.
    """
    changed = replace(pipeline, start=start or pipeline.start, until=until)
    if name is None or name == pipeline.name:
        return changed
    return replace(
        changed, name=name, replays=pipeline.makes_ids_as, to=None, target="", table=None, key=None, path=None
    )


# -- where definitions come from


def from_section(section: PipelineSection, store: str) -> Pipeline:
    """A `[[pipeline]]` of `semel.toml`. `store` is where its output goes, and where it reads unless told otherwise."""
    inputs = tuple(Input(each.store or store, each.stream) for each in section.from_)
    return Pipeline(
        name=section.name,
        inputs=inputs,
        store=store,
        dedupe=section.dedupe,
        order=_order(section.order),
        transform=section.transform,
        handler=section.handler,
        to=section.to,
        target=section.target,
        table=section.table,
        key=section.key,
        path=section.path,
        start=section.start,
        max_rows_per_batch=section.max_rows_per_batch,
        every_s=section.every_s,
        lease_s=section.lease_s,
    )


def _order(given: OrderSection | None) -> Order | None:
    if given is None:
        return None
    return Order(GapPolicy(OnGap(given.gap), given.after_s), given.buffer, given.forget_s)


def from_file(path: Path) -> Pipeline:
    """The value `pipeline` of a Python file, or what it gives when it is a function. Its own functions may be named
    "<file>:function" as well: both mean the function itself, which travels to the tasks with all that it uses of the
    file and of others in its folder."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", fix="name a Python file that defines `pipeline`")
    module = _run_file(path)
    found = getattr(module, PYTHON_NAME, None)
    found = found() if callable(found) else found
    if not isinstance(found, Pipeline):
        raise ConfigError(
            f"{path} defines no pipeline", fix=f"add: {PYTHON_NAME} = Pipeline(name=…, inputs=…, store=…)"
        )
    return replace(
        found,
        handler=_own_function(module, path, found.handler),
        transform=_own_function(module, path, found.transform),
    )


_FROM_FILES: set[str] = set()
"""Modules that the tasks of Spark may not be able to import."""


def _run_file(path: Path) -> ModuleType:
    """As a module under a name that no other has: there may be two files of one name, or a package called like it."""
    folder = path.parent.resolve()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    name = f"semel_pipeline_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SemelError as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be run: {error.message}", fix=error.fix) from error
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}", fix="fix the file") from error
    _FROM_FILES.update(each for each, found in list(sys.modules.items()) if _is_in(folder, found))
    return module


def _is_in(folder: Path, module: ModuleType) -> bool:
    """Whether it is a file of the folder itself. What was installed stands deeper, and is there for the tasks too."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and module.__name__ != "__main__" and Path(file).resolve().parent == folder


def _own_function(module: ModuleType, path: Path, spec: Any) -> Any:
    """A function of the file, given by its name, as itself."""
    owner, _, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    return getattr(module, name) if owner == path.stem and hasattr(module, name) else spec


def send_files_along() -> None:
    """Let functions of files travel as what they are, and not as a name to import."""
    from pyspark.cloudpickle import register_pickle_by_value

    for name in _FROM_FILES:
        register_pickle_by_value(sys.modules[name])
