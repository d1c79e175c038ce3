from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.protocol.frame_values import (
    documents,
    faults,
    groups,
    json_text,
    metadata,
    requests,
    responses,
    texts,
    uint64s,
    users,
)

from semel.errors import LocalProtocolError
from semel.pubsub.protocol.frames import DEPTH_MAX, UINT32_MAX, UINT64_MAX, FrameError
from semel.pubsub.protocol.frames_json import JsonCodec
from semel.pubsub.protocol.messages import (
    Ack,
    CancelInvocation,
    Connected,
    Data,
    DataType,
    Disconnected,
    Fault,
    GroupMessage,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    Invoke,
    InvokeResponse,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    Request,
    Response,
    SendEvent,
    SendToGroup,
    SequenceAck,
    ServerMessage,
    SetGroupState,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamNack,
    StreamPart,
    SubscribeGroupState,
    UnsubscribeGroupState,
)
from semel.websocket import CloseCode

codec = JsonCodec()

ONE = Data(DataType.JSON, b"1")
TEXT = Data(DataType.TEXT, b"hi")


def refused(frame: str | bytes) -> FrameError:
    with pytest.raises(FrameError) as raised:
        codec.decode(frame)
    return raised.value


# -- what clients say


@pytest.mark.parametrize(
    ("frame", "request_"),
    [
        ('{"type":"joinGroup","group":"g","ackId":1}', JoinGroup("g", 1)),
        ('{"type":"joinGroup","group":"g"}', JoinGroup("g")),
        ('{"type":"leaveGroup","group":"g","ackId":0}', LeaveGroup("g", 0)),
        ('{"type":"sendToGroup","group":"g","data":1}', SendToGroup("g", ONE)),
        (
            '{"type":"sendToGroup","group":"g","ackId":18446744073709551615,"noEcho":true,"ttlSeconds":300,'
            '"dataType":"text","data":"hi","metadata":{"a":"b"}}',
            SendToGroup("g", TEXT, UINT64_MAX, True, 300, {"a": "b"}),
        ),
        ('{"type":"sendToGroup","group":"g","dataType":"text","data":"a\\n\\"ä"}',
         SendToGroup("g", Data(DataType.TEXT, 'a\n"ä'.encode()))),
        ('{"type":"sendToGroup","group":"g","dataType":"text","data":"\\u0000"}',
         SendToGroup("g", Data(DataType.TEXT, b"\0"))),
        ('{"type":"sendToGroup","group":"g","dataType":"binary","data":"/wA="}',
         SendToGroup("g", Data(DataType.BINARY, b"\xff\0"))),
        ('{"type":"sendToGroup","group":"g","dataType":"binary","data":"\\u002B\\u002b8="}',
         SendToGroup("g", Data(DataType.BINARY, b"\xfb\xef"))),
        ('{"type":"sendToGroup","group":"g","dataType":"binary","data":""}',
         SendToGroup("g", Data(DataType.BINARY, b""))),
        ('{"type":"sendToGroup","group":"g","dataType":"protobuf","data":"CgFh"}',
         SendToGroup("g", Data(DataType.PROTOBUF, b"\x0a\x01a"))),
        ('{"type":"event","event":"e.v-1","data":"s","ackId":2}', SendEvent("e.v-1", Data(DataType.JSON, b'"s"'), 2)),
        ('{"type":"event","event":"e","metadata":{"a":"b"}}',
         SendEvent("e", Data(DataType.TEXT, b""), metadata={"a": "b"})),
        ('{"type":"sendToGroup","group":"g","metadata":{}}',
         SendToGroup("g", Data(DataType.TEXT, b""), metadata={})),
        ('{"type":"sequenceAck","sequenceId":0}', SequenceAck(0)),
        ('{"type":"ack","sequenceId":7}', SequenceAck(7)),
        ('{"type":"ping"}', Ping()),
        ('{"type":"invoke","invocationId":"i","target":"event","event":"e"}', Invoke("i", "e")),
        ('{"type":"invoke","invocationId":"i","event":"e","dataType":"text","data":"hi"}', Invoke("i", "e", TEXT)),
        ('{"type":"cancelInvocation","invocationId":"i"}', CancelInvocation("i")),
        ('{"type":"sendToGroup","group":"g","noEcho":false,"stream":{"streamId":"s"}}', StartStream("g", "s")),
        (
            '{"type":"sendToGroup","group":"g","noEcho":true,"ttlSeconds":0,"metadata":{"a":"b"},'
            '"stream":{"streamId":"s","idleTimeoutMs":1}}',
            StartStream("g", "s", 1, True, 0, {"a": "b"}),
        ),
        ('{"type":"streamData","streamId":"s"}', StreamData("s")),
        ('{"type":"streamData","streamId":"s","streamSequenceId":1,"dataType":"text","data":"hi"}',
         StreamData("s", 1, TEXT)),
        ('{"type":"streamEnd","streamId":"s"}', StreamEnd("s")),
        ('{"type":"streamEnd","streamId":"s","error":{}}', StreamEnd("s", Fault("UserError"))),
        ('{"type":"streamEnd","streamId":"s","error":{"message":"m","userErrorCode":"c"}}',
         StreamEnd("s", Fault("UserError", "m", "c"))),
        ('{"type":"setGroupState","group":"g","ackId":1,"state":{"a:b":"c"}}', SetGroupState("g", 1, {"a:b": "c"})),
        ('{"type":"setGroupState","group":"g"}', SetGroupState("g")),
        ('{"type":"subscribeGroupState","group":"g","ackId":1}', SubscribeGroupState("g", 1)),
        ('{"type":"unsubscribeGroupState","group":"g"}', UnsubscribeGroupState("g")),
    ],
)  # fmt: skip
def test_requests(frame: str, request_: Request) -> None:
    assert codec.decode(frame) == request_


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"SENDTOGROUP","group":"g","dataType":"text","data":"hi"}',
        '{"type":"sendtogroup","group":"g","dataType":"TEXT","data":"hi"}',
        '{"data":"hi","dataType":"Text","group":"g","type":"SendToGroup"}',
        '{"\\u0074ype":"sendToGroup","group":"g","dataType":"text","data":"hi"}',
        ' { "type" : "sendToGroup" , "group" :\t"g",\r\n"dataType":"text","data" : "hi" } ',
        '{"type":"sendToGroup","group":"g","dataType":"text","data":"hi","event":5,"new":[{"a":1,"a":2}]}',
        '{"type":"sendToGroup","group":"g","dataType":"text","data":"hi","ackId":null,"noEcho":null,"stream":null}',
        '{"type":"sendToGroup","group":"g","dataType":"text","data":"hi","ttlSeconds":null,"metadata":null}',
    ],
)
def test_the_same_request_in_other_words(frame: str) -> None:
    assert codec.decode(frame) == SendToGroup("g", TEXT)


@pytest.mark.parametrize(
    "data",
    ['{"b":1,"a":2,"b":3}', "123456789012345678901234567890", "1.10", "-0", "1e400", '{ "a" : [ ] }', '"\\u00e4\\/:"',
     "true", '""', "[null]", '{"type":"x","group":"y","data":1}'],
)  # fmt: skip
def test_json_data_stays_as_it_was_written(data: str) -> None:
    request = codec.decode(f'{{"type":"event","event":"e","data":  {data}\n}}')
    assert request == SendEvent("e", Data(DataType.JSON, data.encode()))
    assert json_text("a:b") in codec.encode_request(SendEvent("e", Data(DataType.JSON, b'"a:b"'))).encode()


@pytest.mark.parametrize(
    "frame",
    [
        # no JSON, or no frame
        "", " ", "x", "null", "1", '"ping"', "[]", "{}", '[{"type":"ping"}]', '{"type":"ping"', '{"type":"ping"}}',
        '{"type":"ping"} {"type":"ping"}', '{"type":"ping",}', "{'type':'ping'}", '\ufeff{"type":"ping"}',
        '{"type":"ping","x":NaN}', '{"type":"ping","x":01}', '{"type":"ping","x":"\n"}', '{"type":"ping","x":"\\x"}',
        # text that cannot be
        '{"type":"ping","x":"\\ud800"}', '{"type":"ping","x":"\ud800"}', '{"type":"joinGroup","group":"\\udc00a"}',
        '{"type":"event","event":"e","data":"\\ud800\\ud800"}', '{"type":"event","event":"e","data":["\udfff"]}',
        # types
        '{"type":"PING","type":"ping"}', '{"type":null}',
        '{"type":5}', '{"type":"pong"}', '{"type":"pıng"}', '{"type":"message"}', '{"type":""}',
        '{"Type":"ping"}', '{"group":"g"}', '{"type":"joinGroup"}', '{"type":"joinGroup","group":null}',
        '{"type":"joinGroup","group":5}', '{"type":"joinGroup","group":["g"]}', '{"type":"JOINGROUP","group":5}',
        # names
        '{"type":"joinGroup","group":""}', '{"type":"joinGroup","group":" "}', '{"type":"joinGroup","group":"\\u0000"}',
        '{"type":"event","event":"9","data":1}', '{"type":"event","event":"a b","data":1}',
        '{"type":"cancelInvocation","invocationId":""}', '{"type":"streamEnd","streamId":"a\\u0000"}',
        '{"type":"streamEnd","streamId":5}',
        # numbers
        '{"type":"joinGroup","group":"g","ackId":-1}', '{"type":"joinGroup","group":"g","ackId":18446744073709551616}',
        '{"type":"joinGroup","group":"g","ackId":1.0}', '{"type":"joinGroup","group":"g","ackId":"1"}',
        '{"type":"joinGroup","group":"g","ackId":true}', f'{{"type":"joinGroup","group":"g","ackId":{"9" * 5000}}}',
        '{"type":"sequenceAck"}', '{"type":"sequenceAck","sequenceId":null}', '{"type":"sequenceAck","sequenceId":-1}',
        '{"type":"ack","ackId":1}',
        # data
        '{"type":"event","event":"e"}', '{"type":"event","event":"e","data":null}',
        '{"type":"event","event":"e","dataType":"json","data": null }',
        '{"type":"event","event":"e","dataType":"json"}',
        '{"type":"event","event":"e","dataType":"text","data":null}',
        '{"type":"event","event":"e","dataType":"text","data":1}',
        '{"type":"event","event":"e","dataType":"text","data":{"a":"b"}}',
        '{"type":"event","event":"e","dataType":"","data":1}', '{"type":"event","event":"e","dataType":"xml","data":1}',
        '{"type":"event","event":"e","dataType":5,"data":1}', '{"type":"event","event":"e","dataType":"ﬁ","data":1}',
        '{"type":"event","event":"e","dataType":"binary","data":"a"}',
        '{"type":"event","event":"e","dataType":"binary","data":"YWE"}',
        '{"type":"event","event":"e","dataType":"binary","data":"YW E="}',
        '{"type":"event","event":"e","dataType":"binary","data":"ä==="}',
        '{"type":"event","event":"e","dataType":"binary","data":"YQ==YQ=="}',
        '{"type":"event","event":"e","dataType":"binary","data":[1]}',
        '{"type":"event","event":"e","dataType":"protobuf","data":"/w=="}',
        '{"type":"event","event":"e","dataType":"protobuf","data":{}}',
        # options
        '{"type":"sendToGroup","group":"g","data":1,"noEcho":1}',
        '{"type":"sendToGroup","group":"g","data":1,"noEcho":"true"}',
        '{"type":"sendToGroup","group":"g","data":1,"ttlSeconds":301}',
        '{"type":"sendToGroup","group":"g","data":1,"ttlSeconds":-1}',
        '{"type":"sendToGroup","group":"g","data":1,"ttlSeconds":1.5}',
        '{"type":"sendToGroup","group":"g","data":1,"metadata":[]}',
        '{"type":"sendToGroup","group":"g","data":1,"metadata":{"a":1}}',
        '{"type":"sendToGroup","group":"g","data":1,"metadata":{"a b":""}}',
        '{"type":"event","event":"e","data":1,"metadata":{"a":"ä"}}',
        '{"type":"event","event":"e","metadata":null}',
        # invocations
        '{"type":"invoke","invocationId":"i","target":"event"}', '{"type":"invoke","target":"event","event":"e"}',
        '{"type":"invoke","invocationId":"i","target":"group","event":"e"}',
        '{"type":"invoke","invocationId":5,"event":"e"}',
        '{"type":"invoke","invocationId":"i","event":"e","data":null}',
        # streams
        '{"type":"sendToGroup","group":"g","stream":{"streamId":"s"},"data":1}',
        '{"type":"sendToGroup","group":"g","stream":{"streamId":"s"},"data":null}',
        '{"type":"sendToGroup","group":"g","stream":{"streamId":"s"},"dataType":"json"}',
        '{"type":"sendToGroup","group":"g","stream":{"streamId":"s"},"ackId":0}',
        '{"type":"sendToGroup","group":"g","stream":{}}', '{"type":"sendToGroup","group":"g","stream":"s"}',
        '{"type":"sendToGroup","group":"g","stream":{"streamId":""}}',
        '{"type":"sendToGroup","group":"g","stream":{"streamId":"s","idleTimeoutMs":0}}',
        f'{{"type":"sendToGroup","group":"g","stream":{{"streamId":"s","idleTimeoutMs":{UINT32_MAX + 1}}}}}',
        '{"type":"streamData","streamId":"s","streamSequenceId":1}', '{"type":"streamData","streamId":"s","data":1}',
        '{"type":"streamData","streamId":"s","streamSequenceId":1,"data":null}',
        '{"type":"streamData","streamId":"s","streamSequenceId":-1,"data":1}',
        '{"type":"streamEnd","streamId":"s","error":"e"}', '{"type":"streamEnd","streamId":"s","error":{"message":1}}',
        # group state
        '{"type":"setGroupState","group":"g","state":{"a":1}}', '{"type":"setGroupState","group":"g","state":["a"]}',
    ],
)  # fmt: skip
def test_what_is_not_as_it_must_be_closes_the_connection(frame: str) -> None:
    error = refused(frame)
    assert error.close_code == CloseCode.BAD_FRAME
    assert error.reason
    assert error.fix


@pytest.mark.parametrize("frame", [b'{"type":"ping"}', b"", b"\xff"])
def test_json_goes_in_text_frames(frame: bytes) -> None:
    assert refused(frame).close_code == CloseCode.WRONG_FRAME_TYPE
    with pytest.raises(FrameError, match="text frames"):
        codec.decode_response(frame)


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"ping","type":"ping"}',
        '{"type":"ping","type":"PING"}',
        '{"type":"ping","x":1,"x":1}',
        '{"type":"joinGroup","group":"a","group":"b"}',
        '{"type":"joinGroup","group":"a","gro\\u0075p":"b"}',
        '{"type":"joinGroup","group":"a","group":":"}',
        '{"type":"joinGroup","group":"a","group":"\\u003a"}',
        '{"type":"joinGroup","group":"a","ackId":1,"ackId":null}',
        '{"type":"event","event":"e","data":1,"data":{"a":2}}',
        '{"type":"event","event":"e","data":{"a":2},"data":1}',
        '{"type":"event","event":"e","data":"a:b","data":"::"}',
        '{"type":"event","event":"e","data":"","data":"\\u003a"}',
        '{"type":"event","event":"e","dataType":"text","dataType":"text","data":"\\u003a"}',
        '{"type":"event","event":"e","data":1,"metadata":{"a":"1","a":"2"}}',
        '{"type":"event","event":"e","data":1,"metadata":{"a":"1","\\u0061":":"}}',
        '{"type":"sendToGroup","group":"g","stream":{"streamId":"a","streamId":"b"}}',
        '{"type":"streamEnd","streamId":"s","error":{"message":"a","message":"b"}}',
        '{"type":"setGroupState","group":"g","state":{"a":"b","a":"c"}}',
        '{"type":"ping","x":{"y":{"a":1,"a":2}}}',
    ],
)
def test_nothing_may_be_said_twice(frame: str) -> None:
    assert "twice" in refused(frame).message


def pair(name: str, value: str) -> str:
    return f"{json.dumps(name)}:{value}"


@given(requests, st.data(), st.booleans())
def test_no_frame_can_hide_a_doubled_member(request: Request, draw: st.DataObject, escape: bool) -> None:
    members: dict[str, Any] = json.loads(codec.encode_request(request))
    pairs = [pair(name, json.dumps(value, ensure_ascii=escape)) for name, value in members.items()]
    name = draw.draw(st.sampled_from(list(members)), "doubled")
    again = members[name] if draw.draw(st.booleans(), "same") else draw.draw(documents | st.none(), "other value")
    pairs.insert(draw.draw(st.integers(0, len(pairs)), "where"), pair(name, json.dumps(again, ensure_ascii=escape)))
    refused("{" + ",".join(pairs) + "}")


@given(requests, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]), st.booleans(), st.data())
def test_an_honest_frame_is_never_taken_for_a_doubled_one(
    request: Request, separators: tuple[str, str], escape: bool, draw: st.DataObject
) -> None:
    members: dict[str, Any] = json.loads(codec.encode_request(request))
    if members.get("dataType") == "json":  # json.dumps may write the same value in another way
        members["data"] = draw.draw(documents, "data")
    members |= draw.draw(st.dictionaries(texts.map("x-{}".format), documents, max_size=2), "unknown members")
    shuffled = draw.draw(st.permutations(list(members.items())), "order")
    decoded = codec.decode(json.dumps(dict(shuffled), separators=separators, ensure_ascii=escape))
    assert type(decoded) is type(request)
    if members.get("dataType") != "json":
        assert decoded == request


@pytest.mark.parametrize("levels", [1, DEPTH_MAX - 1])
def test_data_may_be_nested_but_not_for_ever(levels: int) -> None:
    data = "[" * levels + "]" * levels
    assert codec.decode(f'{{"type":"event","event":"e","data":{data}}}') == SendEvent(
        "e", Data(DataType.JSON, data.encode())
    )


@pytest.mark.parametrize("levels", [DEPTH_MAX, 100_000])
@pytest.mark.parametrize("member", ["data", "metadata", "unknown"])
def test_endless_nesting_is_refused(levels: int, member: str) -> None:
    nested = '{"a":' * levels + "1" + "}" * levels
    assert "deep" in refused(f'{{"type":"event","event":"e","{member}":{nested}}}').message


# -- what the server says


@pytest.mark.parametrize(
    ("response", "frame"),
    [
        (Connected("c", "u", "t"),
         '{"type":"system","event":"connected","userId":"u","connectionId":"c","reconnectionToken":"t"}'),
        (Connected("c"), '{"type":"system","event":"connected","userId":null,"connectionId":"c"}'),
        (Disconnected("bye"), '{"type":"system","event":"disconnected","message":"bye"}'),
        (Ack(1), '{"type":"ack","ackId":1,"success":true}'),
        (Ack(0, Fault("Duplicate", "")),
         '{"type":"ack","ackId":0,"success":false,"error":{"name":"Duplicate","message":""}}'),
        (GroupMessage("g", ONE, "u"),
         '{"type":"message","from":"group","group":"g","fromUserId":"u","dataType":"json","data":1}'),
        (GroupMessage("g", TEXT, None, 5, {"a": "b"}),
         '{"type":"message","from":"group","group":"g","fromUserId":null,"dataType":"text","data":"hi",'
         '"metadata":{"a":"b"},"sequenceId":5}'),
        (ServerMessage(Data(DataType.BINARY, b"\xff\0"), 7),
         '{"type":"message","from":"server","dataType":"binary","data":"/wA=","sequenceId":7}'),
        (ServerMessage(Data(DataType.PROTOBUF, b"\x0a\x01a")),
         '{"type":"message","from":"server","dataType":"protobuf","data":"CgFh"}'),
        (Pong(), '{"type":"pong"}'),
        (InvokeResponse("i", TEXT),
         '{"type":"invokeResponse","invocationId":"i","success":true,"dataType":"text","data":"hi"}'),
        (InvokeResponse("i"), '{"type":"invokeResponse","invocationId":"i","success":true}'),
        (InvokeResponse("i", None, Fault("NotFound", "m")),
         '{"type":"invokeResponse","invocationId":"i","success":false,"error":{"name":"NotFound","message":"m"}}'),
        (StreamAck("s", 1), '{"type":"streamAck","streamId":"s","expectedSequenceId":1}'),
        (StreamNack("s", 2, "TransientError"),
         '{"type":"streamNack","streamId":"s","expectedSequenceId":2,"name":"TransientError"}'),
        (StreamClosed("s"), '{"type":"streamClosed","streamId":"s"}'),
        (StreamClosed("s", Fault("IdleTimeout", "m")),
         '{"type":"streamClosed","streamId":"s","error":{"name":"IdleTimeout","message":"m"}}'),
        (GroupMessage("g", TEXT, "u", 5, None, StreamPart("s", 1)),
         '{"type":"message","from":"group","group":"g","fromUserId":"u","dataType":"text","data":"hi","sequenceId":5,'
         '"stream":{"streamId":"s","streamSequenceId":1}}'),
        (GroupMessage("g", None, "u", None, None, StreamPart("s", 2, True, Fault("UserError", "m", "c"))),
         '{"type":"message","from":"group","group":"g","fromUserId":"u","dataType":"text","data":"",'
         '"stream":{"streamId":"s","streamSequenceId":2,"endOfStream":true,'
         '"error":{"name":"UserError","message":"m","userErrorCode":"c"}}}'),
        (GroupStateSnapshot("g", ()), '{"type":"groupStateSnapshot","group":"g","items":[]}'),
        (GroupStateUpdate("g", (GroupStateItem("c", 9, "u", {"a": "b"}), GroupStateItem("d", 10))),
         '{"type":"groupStateUpdate","group":"g","items":[{"connectionId":"c","userId":"u","state":{"a":"b"},'
         '"updatedAt":9},{"connectionId":"d","updatedAt":10}]}'),
    ],
)  # fmt: skip
def test_responses_are_written_to_the_letter(response: Response, frame: str) -> None:
    assert codec.encode(response) == frame
    assert codec.decode_response(frame) == response


@given(uint64s, st.none() | faults)
def test_an_ack_is_the_json_that_anybody_would_write(ack_id: int, error: Fault | None) -> None:
    plain: dict[str, Any] = {"type": "ack", "ackId": ack_id, "success": error is None}
    if error is not None:
        code = {} if error.user_code is None else {"userErrorCode": error.user_code}
        plain["error"] = {"name": error.name, "message": error.message, **code}
    assert codec.encode(Ack(ack_id, error)).encode() == json_text(plain)


@given(groups, documents, st.none() | texts, users, st.none() | uint64s, metadata)
def test_a_group_message_is_the_json_that_anybody_would_write(
    group: str, document: object, text: str | None, user: str | None, sequence_id: int | None, notes: dict[str, str]
) -> None:
    data = Data(DataType.JSON, json_text(document)) if text is None else Data(DataType.TEXT, text.encode())
    plain: dict[str, Any] = {"type": "message", "from": "group", "group": group, "fromUserId": user}
    plain |= {"dataType": str(data.type), "data": document if text is None else text}
    plain |= {} if notes is None else {"metadata": notes}
    plain |= {} if sequence_id is None else {"sequenceId": sequence_id}
    assert codec.encode(GroupMessage(group, data, user, sequence_id, notes)).encode() == json_text(plain)


@pytest.mark.parametrize(
    "frame",
    [
        "", "x", '{"type":"ping"}', '{"type":"system","event":"connected"}', '{"type":"system","event":"new"}',
        '{"type":"ack","ackId":1,"success":false}', '{"type":"ack","ackId":-1,"success":true}',
        '{"type":"ack","ackId":1,"success":true,"error":{"name":"n","message":"m"}}',
        '{"type":"message","from":"group","dataType":"text","data":""}',
        '{"type":"message","from":"group","group":"g","dataType":"text"}',
        '{"type":"message","from":"group","group":"g","stream":{"streamId":"s","streamSequenceId":1}}',
        '{"type":"message","from":"user","dataType":"text","data":""}',
        '{"type":"message","from":"server","dataType":"text"}',
        '{"type":"message","from":"server","data":1,"sequenceId":18446744073709551616}',
        '{"type":"invokeResponse","invocationId":"i","success":false}',
        '{"type":"groupStateUpdate","group":"g","items":[{"connectionId":"c"}]}',
        '{"type":"streamAck","streamId":"s","expectedSequenceId":-1}',
        '{"type":"pong","x":' + "[" * 100_000,
    ],
)  # fmt: skip
def test_a_server_that_breaks_the_protocol_is_found_out(frame: str) -> None:
    with pytest.raises(FrameError):
        codec.decode_response(frame)


@pytest.mark.parametrize(
    ("frame", "response"),
    [
        ('{"type":"system","event":"connected","connectionId":"c"}', Connected("c")),
        ('{"sequenceId":1,"type":"Message","from":"group","group":"g","data":1}', GroupMessage("g", ONE, None, 1)),
        (
            '{"type":"message","from":"group","group":"g",'
            '"stream":{"streamId":"s","streamSequenceId":1,"endOfStream":true}}',
            GroupMessage("g", None, stream=StreamPart("s", 1, True)),
        ),
        ('{"type":"ack","ackId":1,"success":false,"error":{"name":"n"}}', Ack(1, Fault("n"))),
    ],
)
def test_what_other_servers_leave_out(frame: str, response: Response) -> None:
    assert codec.decode_response(frame) == response


# -- there and back


@given(requests)
def test_a_request_reads_back(request: Request) -> None:
    assert codec.decode(codec.encode_request(request)) == request


@given(responses)
def test_a_response_reads_back(response: Response) -> None:
    assert codec.decode_response(codec.encode(response)) == response


pieces = st.sampled_from(
    ['{"type":', '"sendToGroup"', '"Ping"', '"group":', '"g"', '"data":', '"dataType":', '"binary"', '"stream":{', "}",
     "]", "{", "[", ",", ":", "null", "1", "-1", "1e9", '"\\ud83d', "\\", '"', "\x00", "\ud800", " ", '"ackId":', '"ä"']
)  # fmt: skip


@given(st.text(st.characters(), max_size=20) | st.lists(pieces, max_size=20).map("".join) | st.binary(max_size=10))
def test_whatever_comes_it_is_read_or_refused(frame: str | bytes) -> None:
    with suppress(FrameError):
        assert isinstance(codec.decode(frame), Request)
    with suppress(FrameError):
        assert isinstance(codec.decode_response(frame), Response)


@given(requests.map(codec.encode_request) | responses.map(codec.encode), st.data())
def test_a_damaged_frame_is_read_or_refused(frame: str, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(frame)))
    end = draw.draw(st.integers(start, min(len(frame), start + 5)))
    damaged = frame[:start] + draw.draw(pieces | st.just("")) + frame[end:]
    with suppress(FrameError):
        assert isinstance(codec.decode(damaged), Request)
    with suppress(FrameError):
        assert isinstance(codec.decode_response(damaged), Response)


@pytest.mark.parametrize(
    "response",
    [
        Disconnected("\ud800"),
        ServerMessage(Data(DataType.TEXT, b"\xff")),
        ServerMessage(Data(DataType.JSON, b'"\xff"')),
        GroupMessage("g", None),
        GroupMessage("g", Data(DataType.TEXT, b"\xff")),
        GroupMessage("g", Data(DataType.JSON, b'"\xff"')),
        GroupMessage("\ud800", TEXT),
        GroupMessage("g", None, stream=StreamPart("s", 1)),
        InvokeResponse("i", TEXT, Fault("n")),
    ],
)
def test_what_json_cannot_say_is_our_own_mistake(response: Response) -> None:
    with pytest.raises(LocalProtocolError) as raised:
        codec.encode(response)
    assert raised.value.fix


@pytest.mark.parametrize(
    "request_",
    [StreamData("s", 1), StreamData("s", None, ONE), StreamEnd("s", Fault("Forbidden")), JoinGroup("\ud800")],
)
def test_what_a_client_cannot_say_is_its_own_mistake(request_: Request) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode_request(request_)


@given(groups, uint64s, st.sampled_from(["text", "json", "binary", "TEXT"]), documents | texts)
def test_a_publish_is_read_alike_with_and_without_what_is_skipped(group: str, id: int, kind: str, data: Any) -> None:
    """The frame that nearly all publishes are is read in fewer steps; with one member more it takes all of them."""
    frame = {"type": "sendToGroup", "group": group, "ackId": id, "dataType": kind, "data": data}

    def outcome(frame: dict[str, Any]) -> object:
        try:
            return codec.decode(json.dumps(frame))
        except FrameError as error:
            return error.message, error.close_code

    assert outcome(frame) == outcome({**frame, "more": None})


@pytest.mark.parametrize("group", ["", " ", "g" * 1025])
def test_a_plain_publish_to_no_group_is_refused(group: str) -> None:
    refused(json.dumps({"type": "sendToGroup", "group": group, "ackId": 1, "dataType": "text", "data": "x"}))


@given(groups, users, st.integers(1, 2**53) | st.none(), texts)
def test_a_plain_message_is_written_as_one_with_metadata_but_without_it(
    group: str, user: str | None, number: int | None, text: str
) -> None:
    plain = GroupMessage(group, Data(DataType.TEXT, text.encode()), user, number)
    with_metadata = GroupMessage(group, plain.data, user, number, {"k": "v"})
    assert codec.encode(plain) == codec.encode(with_metadata).replace(',"metadata":{"k":"v"}', "", 1)
