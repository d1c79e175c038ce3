"""No more is kept than is needed: parts are put together, and old messages are let go of.

Of a message that was let go of, a mark stays for a while. What is heard of it later is known to be late, and is not
taken for a message that nobody sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from semel.spark.audit import follow_parts
from semel.spark.audit.follow_scope import MessageScope
from semel.spark.audit.follow_state import (
    FORGOTTEN,
    LANES,
    MESSAGES,
    ROWS,
    Folder,
    FollowState,
    Forgotten,
    Lanes,
    columns,
    count_rows,
    part_name,
    suffix,
    together,
)
from semel.spark.audit.run import Case

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def put_together(folder: Folder, state: FollowState) -> FollowState:
    """The newest parts become one. All of them have been judged."""
    count = suffix([part.rows for part in state.parts])
    names = state.names[-count:]
    rows = folder.read_parts("messages", names, MESSAGES)
    return _replaced(folder, state, count, rows, folder.read_parts("index", names, ROWS["index"]))


def let_go(folder: Folder, state: FollowState, case: Case, horizon: int, remember_us: int) -> FollowState:
    """Close the windows before `horizon`, and keep the messages only to which something has happened since."""
    rows = folder.read_parts("messages", state.names, MESSAGES)
    before = folder.marks_forgotten(state)
    if before is not None:
        rows = rows.join(before, "mark", "left_anti")
    last = rows.groupBy("mark").agg(F.max(F.coalesce("first_sent", "first_at")).alias("last"))
    place = folder.fresh("forgotten")
    folder.write(last.where(F.col("last") < F.lit(horizon)).select("mark"), place)
    gone = folder.read([place], FORGOTTEN)
    scope = MessageScope.of(case, rows.join(gone, "mark", "left_semi"), state.asked.window_us)
    closed = state.closed + scope.paths
    scope.close()
    index = folder.read_parts("index", state.names, ROWS["index"]).where(_since(horizon))
    known = [each for each in state.forgotten if each.horizon >= horizon - remember_us]
    forgotten = (*known, Forgotten(place.name, horizon)) if count_rows(place) else tuple(known)
    state = msgspec.structs.replace(state, horizon=horizon, forgotten=forgotten, closed=closed)
    state = _replaced(folder, state, len(state.parts), rows.join(gone, "mark", "left_anti"), index)
    sessions = folder.read_parts("messages", state.names, MESSAGES).select("session").distinct()
    return _with_lanes(folder, state, folder.lanes(state.lanes, sessions), len(state.lanes))


def _since(horizon: int) -> Column:
    return F.unix_micros("at") >= F.lit(horizon)


def _replaced(folder: Folder, state: FollowState, count: int, rows: DataFrame, index: DataFrame) -> FollowState:
    """One part in the place of the last ones."""
    name = part_name(state.batch)
    place = folder.path / "parts" / name
    folder.write_by_time(follow_parts.merged(rows), place / "messages")
    folder.write(index.repartitionByRange("stream", "offset").sortWithinPartitions("stream", "offset"), place / "index")
    waiting = folder.read_parts("pending", [state.pending] if state.pending else [], ROWS["ledger"])
    folder.write(waiting.where(_since(state.horizon)), place / "pending")
    part = together(name, state.parts[-count:], count_rows(place / "messages"))
    parts = (*state.parts[:-count], part)
    assert state.judgement is not None
    judgement = msgspec.structs.replace(state.judgement, parts=tuple(each.name for each in parts))
    return msgspec.structs.replace(state, parts=parts, pending=name, judgement=judgement)


def put_lanes_together(folder: Folder, state: FollowState) -> FollowState:
    count = suffix([each.rows for each in state.lanes])
    return _with_lanes(folder, state, folder.lanes(state.lanes[-count:]), count)


def _with_lanes(folder: Folder, state: FollowState, rows: DataFrame, count: int) -> FollowState:
    place = folder.fresh("lanes")
    folder.write(rows.select(*columns(LANES)), place)
    lanes = (*state.lanes[: len(state.lanes) - count], Lanes(place.name, count_rows(place)))
    return msgspec.structs.replace(state, lanes=lanes)
