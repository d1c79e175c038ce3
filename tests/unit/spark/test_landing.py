"""From rows to ops: what is stored, what the ledger says, and that the two agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.spark.sinks import events, ids, raw, records, row, told

from semel.errors import InputError, LimitExceeded, StoreError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob, Envelope
from semel.kernel.ledger import Balance, Kind, balance
from semel.kernel.ops import Append, Log, Unit
from semel.kernel.position import Position
from semel.kernel.store import State
from semel.spark.landing import (
    Inputs,
    Job,
    Landing,
    SinkState,
    SourceRange,
    dead_row,
    derived_id,
    died_stream,
    output_stream,
    questions,
    read_state,
    receipts_stream,
)
from semel.spark.rows import Row, RowOutcome, rows_of
from semel.stores.memory import MemoryStore

JOB = Job("orders", "q1", 7)
HOP = "hub/chat>spark/orders"


def no_bodies(body: bytes) -> Blob:
    raise AssertionError("no row here has a large body")


def found(store: MemoryStore, asked: Inputs) -> Inputs:
    """What the sink looks up before a batch lands."""

    def known(stream: str, asked: set[str]) -> set[str]:
        return asked & {record.identity for record in records(store, stream) if record.identity is not None}

    return Inputs(
        known(output_stream("orders"), asked.kept),
        known(receipts_stream("orders"), asked.receipts),
        known(died_stream("orders"), asked.dead),
    )


def land(store: MemoryStore, *rows: Row, job: Job = JOB) -> None:
    landing = Landing(job, no_bodies, found(store, questions(rows)))
    for each in rows:
        landing.add(each)
    store.commit([Unit(tuple(landing.end()))])


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with closing(MemoryStore()) as store:
        yield store


def test_a_row_that_passes_is_a_record_accepted_and_forwarded(store: MemoryStore) -> None:
    land(store, row("a"), row("b"))
    assert ids(store, "spark/orders") == ["a", "b"]
    assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED) for id in "ab"}
    assert len(events(store)) == 2


def test_the_same_rows_under_another_query_are_duplicates(store: MemoryStore) -> None:
    land(store, row("a"), row("b"))
    land(store, row("a"), row("c"), row("b"), job=Job("orders", "q2", 0))
    assert ids(store, "spark/orders") == ["a", "b", "c"]
    counts = told(store)
    assert counts[HOP, Kind.DUPLICATE, "a"] == counts[HOP, Kind.DUPLICATE, "b"] == 1
    assert counts[HOP, Kind.ACCEPTED, "a"] == counts[HOP, Kind.ACCEPTED, "c"] == 1


def test_an_output_of_another_id_gives_its_input_one_receipt(store: MemoryStore) -> None:
    land(store, row("x", input="a", ordinal=0), row("y", input="a", ordinal=1), row("b"))
    assert ids(store, "spark/orders") == ["x", "y", "b"]
    assert ids(store, "spark/orders/receipts") == ["a"]
    assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED) for id in "ab"}


def test_the_first_output_answers_for_its_input_whichever_id_it_has(store: MemoryStore) -> None:
    land(store, row("a", ordinal=0), row("x", input="a", ordinal=1))
    land(store, row("y", input="b", ordinal=0), row("b", input="b", ordinal=1))
    assert ids(store, "spark/orders") == ["a", "x", "y", "b"]
    assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED) for id in "ab"}


def test_a_message_that_goes_on_beside_what_was_made_of_it_is_told_once(store: MemoryStore) -> None:
    land(store, row("x", input="a", ordinal=0), row("a"), row("y", input="a", ordinal=2))
    land(store, row("b"), row("z", input="b", ordinal=1), row("c"), row("w", input="c"))
    assert ids(store, "spark/orders") == ["x", "a", "y", "b", "z", "c", "w"]
    assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED) for id in "abc"}


def test_a_message_that_comes_twice_in_a_batch_is_told_twice(store: MemoryStore) -> None:
    land(store, row("a"), row("a"), row("x", input="b", ordinal=0), row("x", input="b", ordinal=0))
    counts = told(store)
    assert [counts[HOP, kind, id] for id in "ab" for kind in (Kind.ACCEPTED, Kind.DUPLICATE)] == [1, 1, 1, 1]


def test_outputs_without_numbers_are_told_apart_by_their_input(store: MemoryStore) -> None:
    land(store, row("x", input="a"), row("y", input="a"), row("z", input="b"))
    assert ids(store, "spark/orders/receipts") == ["a", "b"]


def test_handled_leaves_a_receipt_and_no_output(store: MemoryStore) -> None:
    land(store, row("a", outcome=RowOutcome.HANDLED, session="s", index=3))
    assert ids(store, "spark/orders") == []
    assert placed(store, "spark/orders/receipts") == [("a", "s", 3)]
    assert told(store) == {(HOP, Kind.ACCEPTED, "a"): 1, (HOP, Kind.HANDLED, "a"): 1}


def placed(store: MemoryStore, stream: str) -> list[tuple[str, str | None, int | None]]:
    """The receipts of a stream."""
    envelopes = [record.envelope for record in records(store, stream)]
    assert {envelope.type for envelope in envelopes} == {"semel.receipt"}
    return [(envelope.id, envelope.session, envelope.index) for envelope in envelopes]


def itself(id: str, session: str, index: int) -> Row:
    """An input as a handler puts it before its outputs."""
    return row(id, session=session, index=index, outcome=RowOutcome.HANDLED)


def test_a_receipt_shows_the_input_and_not_its_outputs(store: MemoryStore) -> None:
    land(
        store,
        itself("a", "s", 3), row("x", input="a", ordinal=0, session="t"), row("y", input="a", ordinal=1, session="u"),
        itself("b", "s", 4), row("b", input="b", ordinal=0, session="t"),
        itself("c", "s", 5),
        row("d", session="s", index=6),
    )  # fmt: skip
    assert ids(store, "spark/orders") == ["x", "y", "b", "d"]
    assert placed(store, "spark/orders/receipts") == [("a", "s", 3), ("b", "s", 4), ("c", "s", 5)]
    ends = {"a": Kind.FORWARDED, "b": Kind.FORWARDED, "c": Kind.HANDLED, "d": Kind.FORWARDED}
    assert told(store) == {(HOP, kind, id): 1 for id, end in ends.items() for kind in (Kind.ACCEPTED, end)}


def test_the_same_input_with_outputs_twice_is_two_arrivals(store: MemoryStore) -> None:
    for job in (JOB, Job("orders", "q2", 0)):
        land(store, itself("a", "s", 3), row("x", input="a", ordinal=0), row("y", input="a", ordinal=1), job=job)
    assert told(store) == {
        (HOP, Kind.ACCEPTED, "a"): 1, (HOP, Kind.FORWARDED, "a"): 1, (HOP, Kind.DUPLICATE, "a"): 1,
    }  # fmt: skip


def test_several_outputs_of_an_output_that_were_all_handled_are_told_once(store: MemoryStore) -> None:
    land(store, *[row(f"x{n}", input="a", ordinal=n, outcome=RowOutcome.HANDLED) for n in range(3)])
    assert told(store) == {(HOP, Kind.ACCEPTED, "a"): 1, (HOP, Kind.HANDLED, "a"): 1}


def test_a_dead_letter_keeps_its_message_and_says_why(store: MemoryStore) -> None:
    land(store, row("a", outcome=RowOutcome.DEAD, cause="bad\x00sum", data=b"body"), row("a", outcome=RowOutcome.DEAD))
    [dead] = records(store, "dead/hub/chat")
    assert dead.envelope.data == b"body"
    assert dead.envelope.headers == {"semel-cause": "bad\ufffdsum", "semel-pipeline": "orders"}
    assert dead.identity == "orders:a"
    assert told(store) == {
        (HOP, Kind.ACCEPTED, "a"): 1, (HOP, Kind.DEAD_LETTERED, "a"): 1, (HOP, Kind.DUPLICATE, "a"): 1,
    }  # fmt: skip
    [end] = [event for event in events(store) if event.kind is Kind.DEAD_LETTERED]
    assert end.cause == "bad\ufffdsum"


# -- one acceptance for one input, whatever became of it

FATES = {
    "passes": ((row("a", session="s", index=3),), Kind.FORWARDED),
    "makes": ((itself("a", "s", 3), row("x", input="a", ordinal=0), row("y", input="a", ordinal=1)), Kind.FORWARDED),
    "handles": ((itself("a", "s", 3),), Kind.HANDLED),
    "dies": ((row("a", session="s", index=3, outcome=RowOutcome.DEAD, cause="no"),), Kind.DEAD_LETTERED),
}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("again", FATES)
@pytest.mark.parametrize("first", FATES)
def test_what_took_effect_is_a_duplicate_and_what_died_was_replayed(
    store: MemoryStore, first: str, again: str, together: bool
) -> None:
    (rows, end), (more, other_end) = FATES[first], FATES[again]
    if together:
        land(store, *rows, *more)
    else:
        land(store, *rows)
        land(store, *more, job=Job("orders", "q2", 0))
    expected = {Kind.ACCEPTED: 1, end: 1}
    if first == "dies" and again != "dies":
        expected |= {Kind.REPLAYED: 1, other_end: 1}
    else:
        expected |= {Kind.DUPLICATE: 1}
    assert told(store) == {(HOP, kind, "a"): count for kind, count in expected.items()}
    assert balance(events(store), 0).holds
    assert ids(store, "dead/hub/chat") == (["a"] if first == "dies" else [])
    assert {(event.session, event.idx) for event in events(store) if event.message is not None} <= {("s", 3)}


@pytest.mark.parametrize("third", FATES)
def test_what_was_replayed_took_effect(store: MemoryStore, third: str) -> None:
    for number, fate in enumerate(("dies", "passes", third)):
        land(store, *FATES[fate][0], job=Job("orders", "q", number))
    assert told(store)[HOP, Kind.DUPLICATE, "a"] == 1
    assert balance(events(store), 0) == Balance(accepted=1, replayed=1, ended=2, open=0)


def test_a_copy_by_another_way_is_the_same_input(store: MemoryStore) -> None:
    land(store, row("a", stream="hub/east", outcome=RowOutcome.DEAD), row("a", stream="hub/west"))
    assert told(store) == {
        ("hub/east>spark/orders", Kind.ACCEPTED, "a"): 1,
        ("hub/east>spark/orders", Kind.DEAD_LETTERED, "a"): 1,
        ("hub/west>spark/orders", Kind.REPLAYED, "a"): 1,
        ("hub/west>spark/orders", Kind.FORWARDED, "a"): 1,
    }


def test_the_death_of_an_output_is_told_of_its_input(store: MemoryStore) -> None:
    land(store, itself("a", "s", 3), row("x", input="a", ordinal=0, outcome=RowOutcome.DEAD, cause="no", data=b"body"))
    land(store, row("z", input="b", ordinal=0, outcome=RowOutcome.DEAD))
    assert [(dead.envelope.id, dead.envelope.data) for dead in records(store, "dead/hub/chat")] == [
        ("x", b"body"), ("z", b""),
    ]  # fmt: skip
    assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.DEAD_LETTERED) for id in "ab"}
    assert placed(store, "spark/orders/dead") == [("a", "s", 3), ("b", None, None)]


def test_an_output_that_dies_beside_others_is_kept_and_ends_nothing(store: MemoryStore) -> None:
    dead = row("y", input="a", ordinal=1, outcome=RowOutcome.DEAD, cause="no", data=b"body")
    land(store, row("x", input="a", ordinal=0), dead)
    assert [dead.envelope.data for dead in records(store, "dead/hub/chat")] == [b"body"]
    assert told(store) == {(HOP, kind, "a"): 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED, Kind.FAILED)}
    [failed] = [event for event in events(store) if event.kind is Kind.FAILED]
    assert failed.cause == "output y: no"


def test_a_dead_letter_with_a_long_id_or_full_headers_has_its_place_too(store: MemoryStore) -> None:
    full = Envelope("y" * 255, headers={f"h{n}": "v" for n in range(64)})
    land(store, Row(full, outcome=RowOutcome.DEAD, cause="c"))
    [dead] = records(store, "dead/input")
    assert dead.envelope.headers == {"semel-cause": "c", "semel-pipeline": "orders"}
    assert dead.identity is not None
    assert len(dead.identity) == 32


def test_what_does_not_pass_is_only_told(store: MemoryStore) -> None:
    land(
        store, row("a", outcome=RowOutcome.DUPLICATE, cause="index 3 came again"), row("b", outcome=RowOutcome.REJECTED)
    )
    assert told(store) == {(HOP, Kind.DUPLICATE, "a"): 1, (HOP, Kind.REJECTED, "b"): 1}
    assert store.status().streams == ()


def test_indexes_that_never_came_are_one_gap_and_end_no_message(store: MemoryStore) -> None:
    skipped = [row(f"s#{n}", session="s", index=n, outcome=RowOutcome.SKIPPED) for n in (3, 4, 5, 9)]
    land(store, *skipped, row("a"), row("s#11", session="s", index=11, outcome=RowOutcome.SKIPPED))
    counts = told(store)
    gaps = [key for key in counts if key[1] is Kind.ACTION]
    assert gaps == [(HOP, Kind.ACTION, f"gap {gap}") for gap in ("3..5", "9..9", "11..11")]
    assert Kind.SKIPPED not in {kind for _, kind, _ in counts}


def test_a_run_ends_where_another_hop_or_another_sort_of_record_begins(store: MemoryStore) -> None:
    land(
        store,
        row("a"), row("b"), row("x", input="m"), row("c"), row("d", stream="hub/other"), row("e"),
        row("f", stream=None),
    )  # fmt: skip
    counts = told(store)
    assert {id for hop, kind, id in counts if hop == HOP and kind is Kind.ACCEPTED} == {"a", "b", "m", "c", "e"}
    assert counts["hub/other>spark/orders", Kind.ACCEPTED, "d"] == 1
    assert counts["input>spark/orders", Kind.FORWARDED, "f"] == 1


outcomes = st.sampled_from([None, None, None, *RowOutcome])
some_rows = st.lists(
    st.builds(
        row,
        st.sampled_from("abcdef"),
        stream=st.sampled_from(["hub/a", "hub/b", None]),
        outcome=outcomes,
        input=st.sampled_from([None, None, "m", "n"]),
        ordinal=st.sampled_from([None, 0, 1]),
        session=st.just("s"),
        index=st.integers(0, 5),
    ),
    max_size=12,
)


@given(some_rows, some_rows)
def test_whatever_comes_every_range_is_exact_and_every_id_stands_once(first: list[Row], second: list[Row]) -> None:
    with closing(MemoryStore()) as store:
        land(store, *first)
        land(store, *second, job=Job("orders", "q1", 8))
        accepted = Counter(id for (_, kind, id), n in told(store).items() for _ in range(n) if kind is Kind.ACCEPTED)
        assert set(accepted.values()) <= {1}
        assert balance(events(store), 0).holds
        for stream in store.status().streams:
            stored = [record.identity for record in records(store, stream.name)]
            assert len(stored) == len(set(stored))
        passed = [each.envelope.id for each in first + second if each.outcome is None]
        assert ids(store, "spark/orders") == list(dict.fromkeys(passed))


def test_derived_ids_are_the_same_for_ever_and_apart_from_each_other() -> None:
    assert derived_id("orders", "m-1", 0) == "1645e5de5642509431d5cd84fe3dafb1"
    made = {derived_id(p, i, n) for p in ("a", "b") for i in ("x", "y") for n in (0, 1)}
    assert len(made) == 8


# -- rows that no store would take


def refused(**columns: list[object]) -> list[Row]:
    return list(rows_of(raw(**columns), refuse=dead_row))


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"id": ["a"], "session": ["s\x00"]}, "session contains a NUL"),
        ({"id": ["a"], "type": ["t" * 1025]}, "type has 1025 characters"),
        ({"id": ["a"], "index": [-1]}, "index -1 is outside"),
        ({"id": ["a"], "headers": [[("h", None)]]}, "header 'h' must be text"),
        ({"id": ["a"], "outcome": ["lost"]}, "outcome 'lost' is not known"),
        ({"id": ["a"], "time": [-5]}, "time -5 is outside"),
    ],
)
def test_a_bad_column_makes_a_dead_letter_that_keeps_the_good_ones(
    columns: dict[str, list[object]], cause: str
) -> None:
    [dead] = refused(**columns, data=[b"body"], subject=["about"])
    assert (dead.envelope.id, dead.outcome, dead.envelope.data, dead.envelope.subject) == (
        "a", RowOutcome.DEAD, b"body", "about",
    )  # fmt: skip
    assert dead.cause is not None
    assert cause in dead.cause


def test_a_bad_id_is_replaced_and_kept_in_a_header() -> None:
    long, nul = refused(id=["x" * 300, "a\x00b"])
    assert long.envelope.id.startswith("bad-")
    assert long.envelope.id != nul.envelope.id
    assert long.envelope.headers["semel-id"] == "x" * 300
    assert nul.envelope.headers["semel-id"] == "a\ufffdb"
    assert refused(id=["x" * 300])[0].envelope.id == long.envelope.id


def test_a_row_without_an_id_is_called_by_its_place() -> None:
    [dead] = refused(id=[None], stream=["hub/chat"], epoch=[1], offset=[12])
    assert (dead.envelope.id, dead.position) == ("hub/chat@1:12", Position("hub/chat", 1, 12))


def test_a_row_without_an_id_and_a_place_raises() -> None:
    with pytest.raises(InputError, match="no id"):
        refused(id=[None])


def test_a_large_body_goes_with_the_dead_letter() -> None:
    body = b"x" * (DATA_INLINE_BYTES_MAX + 1)
    [dead] = refused(id=["a"], session=[""], data=[body])
    assert dead.large == body
    assert dead.envelope.data == b""


def test_bad_outputs_of_one_input_are_dead_letters_of_their_own() -> None:
    batch = raw(id=[None, None], input=["m", "m"], ordinal=[0, 1], session=["", ""], stream=["hub/chat"] * 2)
    derive = partial(derived_id, "orders")
    found = list(rows_of(batch, refuse=partial(dead_row, derive=derive), derive=derive))
    assert [(dead.envelope.id, dead.input, dead.ordinal) for dead in found] == [
        (derived_id("orders", "m", n), "m", n) for n in (0, 1)
    ]  # fmt: skip


def test_an_output_without_an_id_is_given_a_derived_one() -> None:
    [made] = rows_of(raw(id=[None], input=["m"], ordinal=[2]), derive=lambda i, n: derived_id("orders", i, n))
    assert made.envelope.id == derived_id("orders", "m", 2)


def test_bad_names_of_inputs_and_streams_do_not_stop_the_rest(store: MemoryStore) -> None:
    land(store, row("a", input="i\x00"), row("b", stream="Not A Stream"), row("c"))
    assert ids(store, "spark/orders") == ["c"]
    assert ids(store, "dead/hub/chat") == ["a"]
    assert ids(store, "dead/input") == ["b"]
    told(store)


def test_a_long_name_of_a_stream_has_a_short_hop(store: MemoryStore) -> None:
    land(store, row("a", stream="s" * 500), row("b", stream="s" * 500, outcome=RowOutcome.DEAD))
    assert ids(store, "spark/orders") == ["a"]
    assert all(len(hop) <= 512 for hop, _, _ in told(store))


def test_a_body_beyond_every_limit_is_left_out(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.spark.landing.BODY_BYTES_MAX", 10)

    def keep(body: bytes) -> Blob:
        raise LimitExceeded("the body has more than 10 bytes", fix="")

    landing = Landing(JOB, keep)
    landing.add(Row(Envelope("a"), large=b"x" * 11))
    store.commit([Unit(tuple(landing.end()))])
    [dead] = records(store, "dead/input")
    assert "more than 10 bytes" in dead.envelope.headers["semel-cause"]


# -- names and state


def test_a_pipeline_has_a_name_that_fits() -> None:
    assert output_stream("Big Orders") == "spark/%42ig%20%4Frders"
    with pytest.raises(LimitExceeded, match="shorter name"):
        output_stream("Ä" * 100)


def test_the_state_knows_what_has_landed_of_this_query_and_the_ones_before() -> None:
    state = SinkState().after("q1", 5, {}).after("q2", 0, {"hub/chat": SourceRange("s", "hub/chat", 1, 0, 9)})
    again = read_state("sink/orders", State(state.encode(), 1))
    assert again == state
    assert state.has("q1", 5)
    assert state.has("q2", 0)
    assert not state.has("q1", 6)
    assert not state.has("q3", 0)
    for n in range(20):
        state = state.after(f"more{n}", 0, {})
    assert len(state.landed) == 9
    assert not state.has("q1", 5)
    assert state.has("more19", 0)


def test_batch_jobs_push_out_no_query_and_take_nothing_of_its_place() -> None:
    sources = {"hub/chat": SourceRange("s", "hub/chat", 1, 0, 9)}
    state = SinkState().after("q1", 5, {}).after("q2", 0, sources)
    for n in range(20):
        state = state.after_job(f"job{n}")
    assert state.landed == {"q1": 5, "q2": 0, "job19": 0}
    assert state.has("job19", 0)
    assert state.sources == sources
    following = state.after("q2", 1, {})
    assert following.landed == {"q1": 5, "q2": 1, "job19": 0}


def test_a_state_of_somebody_else_is_named() -> None:
    with pytest.raises(StoreError, match="sink/orders"):
        read_state("sink/orders", State(b"[]", 1))


def test_ops_of_a_batch_share_their_templates() -> None:
    landing = Landing(JOB, no_bodies)
    for n in range(3):
        landing.add(row(f"m{n}"))
    appends = [op for op in landing.end() if isinstance(op, Append)]
    assert len({id(op.on_fresh) for op in appends}) == 1
    assert not [op for op in landing.ops if isinstance(op, Log)]
    assert Counter(op.stream for op in appends) == {"spark/orders": 3}
