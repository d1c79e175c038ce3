"""Invocations go out once, whatever happens."""

from __future__ import annotations

import json

from semel.pubsub.client.acks import ClientInvocations
from semel.pubsub.protocol.frames_json import JsonCodec
from semel.pubsub.protocol.messages import Invoke


def invocations(*tokens: int) -> ClientInvocations:
    made = ClientInvocations(JsonCodec())
    for token in tokens:
        made.add(token, Invoke("", "ask"))
    return made


def ids(frames: list[str | bytes]) -> list[str]:
    return [json.loads(frame)["invocationId"] for frame in frames]


def test_each_goes_out_once_under_an_id_of_its_own() -> None:
    asked = invocations(7, 8)
    assert ids(asked.fill()) == ["1", "2"]
    assert asked.fill() == []
    asked.add(9, Invoke("", "ask"))
    assert ids(asked.fill()) == ["3"]


def test_an_id_is_not_used_again_when_its_invocation_is_over() -> None:
    asked = invocations(7)
    asked.fill()
    found = asked.find("1")
    assert found is asked.by_token(7)
    assert found is not None
    asked.remove(found)
    assert (asked.find("1"), asked.by_token(7), len(asked)) == (None, None, 0)
    asked.add(8, Invoke("", "ask"))
    assert ids(asked.fill()) == ["2"]


def test_one_that_was_withdrawn_before_it_went_out_never_goes() -> None:
    asked = invocations(7, 8)
    first = asked.by_token(7)
    assert first is not None
    assert not first.is_sent
    asked.remove(first)
    assert ids(asked.fill()) == ["2"]


def test_a_cancellation_names_the_invocation() -> None:
    asked = invocations(7)
    (invocation,) = asked
    assert json.loads(asked.cancel(invocation)) == {"type": "cancelInvocation", "invocationId": "1"}
