"""The user's own function over the rows of a pipeline.

A handler takes an `Envelope` and returns what shall go on: the same message, changed or not; other messages; several;
or None when it is done with it. An exception makes the message a dead letter, with the exception as its cause, and the
rest goes on. It may be called again for the same message after a crash, so what it does besides returning must stand
that.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import DataFrame

from semel.errors import ConfigError, HandlerError
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.text import clean_cause
from semel.spark.landing import dead_row, derived_id
from semel.spark.nulls import with_headers
from semel.spark.rows import MESSAGE, TRAVEL, Row, RowOutcome, batch_of, rows_of

Handler = Callable[[Envelope], Envelope | Iterable[Envelope] | None]

_ONE = (Envelope, Mapping, str, bytes)
"""What a function gives as one thing, though it can be iterated over."""

_at_work: ContextVar[tuple[str, Row]] = ContextVar("semel_handler")


def apply_handler(df: DataFrame, spec: str | Handler, *, pipeline: str) -> DataFrame:
    """Hand every row to a function, given as itself or as "module:function". Gives the columns of a message and those
    that travel with it; other columns end here.

    - The same id goes on as the same message. Another id is a new message: `input` names the one it was made of, and
      `ordinal` counts. Session and index are those of the input unless the function sets them; of several outputs none
      gets the index, because an index is taken once.
    - Where the first output has another session or index than the input, the input itself stands before it, without
      its body and with outcome 'handled': so the sink can tell of it as it came.
    - None, or nothing at all: outcome 'handled'.
    - An exception: outcome 'dead', and nothing of what the function gave before it goes on.
    - A row that has an outcome already travels on untouched. One that is no message by Semel's rules becomes 'dead'.

        >>> apply_handler(ordered, "shop.orders:accept", pipeline="orders")     # doctest: +SKIP
    """
    if isinstance(spec, str):
        load_function(spec)
    return with_headers(df).mapInArrow(BatchHandler(spec, pipeline), f"{MESSAGE}, {TRAVEL}")


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """For `mapInArrow`: a handler over batches of rows."""

    spec: str | Handler
    pipeline: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handler = load_function(self.spec) if isinstance(self.spec, str) else self.spec
        for batch in batches:
            yield batch_of([out for row in self._rows(batch) for out in handle(row, handler, self.pipeline)])

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        derive = partial(derived_id, self.pipeline)
        return rows_of(batch, refuse=partial(dead_row, derive=derive), derive=derive)


def handle(row: Row, handler: Handler, pipeline: str) -> list[Row]:
    """What becomes of one row."""
    if row.outcome is not None:
        return [row]
    token = _at_work.set((pipeline, row))
    try:
        outputs = _outputs(handler(_shown(row)))
    except Exception as error:
        return [replace(row, outcome=RowOutcome.DEAD, cause=_cause(error))]
    except SystemExit as error:
        # it would end Spark's Python process, and nobody would know which message it was
        return [replace(row, outcome=RowOutcome.DEAD, cause=_exit_cause(row, error))]
    finally:
        _at_work.reset(token)
    if not outputs:
        return [replace(row, outcome=RowOutcome.HANDLED)]
    made = [_output(row, output, place, single=len(outputs) == 1) for place, output in enumerate(outputs)]
    return made if row.input is not None or _is_placed_like(row, made[0]) else _behind_input(row, made)


def derived(envelope: Envelope, ordinal: int = 0, **changes: Any) -> Envelope:
    """A new message made of `envelope` inside a handler, with an id of its own that is the same at every run. Outputs
    of one input need different ordinals.

        >>> [derived(order, at, data=line) for at, line in enumerate(lines)]    # doctest: +SKIP
    """
    pipeline, _ = _working("derived")
    fresh: dict[str, Any] = {"id": derived_id(pipeline, envelope.id, ordinal), "session": None, "index": None}
    if "data" in changes:
        fresh["blob"] = None
    return replace(envelope, **{**fresh, **changes})


def body(envelope: Envelope) -> bytes:
    """The bytes of a message inside a handler. Those of a large one are not in the envelope, which holds only their
    size."""
    _, row = _working("body")
    return row.large if envelope.blob is not None and row.large is not None else envelope.data


def _working(what: str) -> tuple[str, Row]:
    found = _at_work.get(None)
    if found is None:
        raise HandlerError(
            f"{what}() was called outside a handler", fix="call it in the function that handles a message"
        )
    return found


def _shown(row: Row) -> Envelope:
    if row.large is None:
        return row.envelope
    return replace(row.envelope, blob=Blob(row.envelope.id, len(row.large)))


def _outputs(result: Any) -> list[Envelope]:
    """What a function returned, as a list. A generator runs here, to its end, before anything goes on."""
    if result is None:
        return []
    outputs: list[Any] = [result] if isinstance(result, _ONE) or not isinstance(result, Iterable) else list(result)
    ids: set[str] = set()
    for output in outputs:
        if not isinstance(output, Envelope):
            raise HandlerError(
                f"the handler gave {_a(type(output).__name__)}, not an Envelope",
                fix="return an Envelope, several of them, or None",
            )
        if output.id in ids:
            raise HandlerError(
                f"the handler gave two messages with the id {output.id!r}",
                fix="give each an id of its own, for example with derived(envelope, 0), derived(envelope, 1)",
            )
        ids.add(output.id)
    return outputs


def _a(name: str) -> str:
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def _output(row: Row, output: Envelope, place: int, *, single: bool) -> Row:
    given = row.envelope
    same = output.id == given.id
    large = row.large if output.blob is not None else None
    kept: dict[str, Any] = {"blob": None} if output.blob is not None else {}
    if output.session is None and given.session is not None:
        kept["session"] = given.session
    if output.index is None and output.session in (None, given.session) and (same or single):
        kept["index"] = given.index
    envelope = replace(output, **kept) if kept else output
    if same:
        return replace(row, envelope=envelope, large=large)
    if row.input is not None:
        # it was an output already: the first one made of it takes its number, and the others are none that answer
        return replace(row, envelope=envelope, large=large, ordinal=place or row.ordinal)
    return replace(row, envelope=envelope, large=large, input=given.id, ordinal=place)


def _is_placed_like(row: Row, output: Row) -> bool:
    return (row.envelope.session, row.envelope.index) == (output.envelope.session, output.envelope.index)


def _behind_input(row: Row, outputs: list[Row]) -> list[Row]:
    """The input, of which only the name and the place are needed, and its outputs."""
    given = row.envelope
    bare = Envelope(given.id, session=given.session, index=given.index)
    named = [replace(output, input=given.id, ordinal=place) for place, output in enumerate(outputs)]
    return [replace(row, envelope=bare, large=None, outcome=RowOutcome.HANDLED), *named]


def _cause(error: Exception) -> str:
    text = str(error)
    name = type(error).__name__
    return clean_cause(f"{name}: {text}" if text else name)


def _exit_cause(row: Row, error: SystemExit) -> str:
    return clean_cause(f"SystemExit: the handler called exit({error.code!r}) for {row.envelope.id}")


def load_function(spec: str) -> Handler:
    """The function that "module:function" names."""
    module_name, separator, name = spec.partition(":")
    if not (separator and module_name and name):
        raise ConfigError(
            f"{spec!r} does not name a function", fix='write "module:function", as in "shop.orders:accept"'
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"there is no module {error.name!r}, which {spec!r} names",
                fix="install it where the pipeline runs, or correct the name",
            ) from None
        raise _broken(spec, error) from error
    except Exception as error:
        raise _broken(spec, error) from error
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"module {module_name!r} has no {name!r}", fix=f"define it, or correct {spec!r}")
    if not callable(found):
        raise ConfigError(f"{spec!r} is {type(found).__name__}, not a function", fix="name a function of one envelope")
    return found


def _broken(spec: str, error: Exception) -> HandlerError:
    """The import ran the user's code, and that failed: say where."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    last = frames[-1] if len(frames) > 1 else None
    where = f"{last.filename}:{last.lineno}" if last else str(getattr(error, "filename", None) or spec)
    line = f" in `{last.line}`" if last and last.line else ""
    return HandlerError(
        f"importing {spec!r} failed: {type(error).__name__}: {clean_cause(str(error))} ({where}{line})",
        fix=f"make `python -c 'import {spec.partition(':')[0]}'` work",
    )
