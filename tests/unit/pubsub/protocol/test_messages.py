"""How much requests bring, by which is bounded what may wait."""

from __future__ import annotations

import pytest

from semel.pubsub.protocol.messages import (
    CONTENT_TYPES,
    Data,
    DataType,
    Fault,
    JoinGroup,
    Request,
    SendToGroup,
    SetGroupState,
    StreamEnd,
    weigh,
)


@pytest.mark.parametrize(
    ("request_", "weight"),
    [
        (SendToGroup("g", Data(DataType.TEXT, b"four")), 4),
        (SetGroupState("g", state={"mood": "good"}), 8),
        (SetGroupState("g"), 0),
        (StreamEnd("s", error=Fault("UserError", "enough")), 6),
        (StreamEnd("s"), 0),
        (JoinGroup("a group with a long name"), 0),
    ],
)
def test_a_request_weighs_what_it_brings(request_: Request, weight: int) -> None:
    assert weigh([request_]) == weight
    assert weigh([request_, request_]) == 2 * weight


def test_every_type_of_data_has_a_content_type_of_its_own() -> None:
    assert CONTENT_TYPES.keys() == set(DataType)
    assert len(set(CONTENT_TYPES.values())) == len(DataType)
