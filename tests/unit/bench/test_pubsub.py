"""`semel bench pubsub` with real processes and tiny sizes: that it measures what it says. How fast is the machine's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from semel.bench import pubsub, pubsub_load, pubsub_peers
from semel.bench.pubsub import NATS, PARTS, PICOWS, POSTGRES, RABBITMQ, SQLITE, Goal, PubSubOptions, PubSubResult
from semel.bench.pubsub_load import Marked, PublishLoad, Sized, Subscriber, Wire, drive, masked
from semel.bench.pubsub_peers import Confirms, Mqtt, NotInstalled
from semel.errors import PeerUnavailable, StoreUnavailable
from semel.runtime.transports.websocket import FrameReader
from semel.testing.postgres import new_database


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[first:last] for first, last in pairwise(edges)]


CUTS = st.lists(st.integers(0, 10_000), max_size=20)


# -- counting


@given(st.integers(0, 20), CUTS)
def test_answers_are_counted_however_they_are_cut(count: int, cuts: list[int]) -> None:
    marked, sized = Marked(b'"success":true'), Sized(30)
    for piece in pieces(b'{"ackId":1000,"success":true} ' * count, cuts):
        marked.receive(piece)
        sized.receive(piece)
    assert (marked.count, sized.count) == (count, count)


def test_a_subscriber_acknowledges_the_last_whole_message(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    subscriber, silent = Subscriber(), Subscriber(acknowledges=False)
    text = b'{"type":"message","sequenceId":7}{"type":"message","sequenceId":8}'
    assert subscriber.receive(text) == b""
    now = 1.0
    assert subscriber.receive(text + b'{"type":"message","sequenceId":9') == b""
    assert FrameReader(1000).feed(subscriber.receive(text)) == ['{"type":"sequenceAck","sequenceId":8}']
    assert subscriber.receive(text) == b""
    assert silent.receive(text) == b""
    assert (subscriber.count, silent.count) == (9, 2)


@given(st.permutations(range(1, 9)), st.integers(0, 8), CUTS)
def test_confirms_count_once_each(tags: list[int], all_up_to: int, cuts: list[int]) -> None:
    confirms = Confirms()
    frames = [(tag, 0) for tag in tags[:5]] + ([(all_up_to, 1)] if all_up_to else [])
    data = b"".join(b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50%b%c\xce" % (t.to_bytes(8), m) for t, m in frames)
    for piece in pieces(data, cuts):
        assert confirms.receive(piece) == b""
    assert confirms.count == len({*tags[:5], *range(1, all_up_to + 1)})


def test_a_channel_that_is_closed_is_no_confirm() -> None:
    with pytest.raises(PeerUnavailable, match="does not confirm"):
        Confirms().receive(b"\x01\x00\x01\x00\x00\x00\x0d\x00\x14\x00\x28" + bytes(10))


@given(CUTS)
def test_both_ends_of_mqtt_come_to_an_end(cuts: list[int]) -> None:
    messages = b"".join(pubsub_peers._mqtt_publish(id, 200) for id in (1, 258))
    receiver, sender = Mqtt(len(messages) // 2), Mqtt(len(messages) // 2)
    received = b"".join(receiver.receive(piece) for piece in pieces(messages, cuts))
    assert received == b"\x50\x02\x00\x01\x50\x02\x01\x02"
    released = b"".join(sender.receive(piece) for piece in pieces(received, cuts))
    assert released == b"\x62\x02\x00\x01\x62\x02\x01\x02"
    completed = b"".join(receiver.receive(piece) for piece in pieces(released, cuts))
    assert completed == b"\x70\x02\x00\x01\x70\x02\x01\x02"
    assert b"".join(sender.receive(piece) for piece in pieces(completed, cuts)) == b""
    assert (receiver.count, sender.count) == (2, 2)
    with pytest.raises(PeerUnavailable, match="something else"):
        sender.receive(b"\xe0\x00\x00\x00")


# -- the load


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_no_more_than_the_window_is_in_flight(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    most = 0

    def echo() -> None:
        nonlocal most
        while data := theirs.recv(1 << 16):
            most = max(most, len(data))
            theirs.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    publisher = PublishLoad(ours, Sized(10), b"0123456789" * 40, 10, 7)
    assert drive(publisher)[0] == 40
    assert most <= 70
    publisher.close()
    thread.join()


def test_a_closed_connection_is_said(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    wire = Wire(ours, Sized(1))
    theirs.sendall(b"too much")
    wire.receive()
    theirs.close()
    with pytest.raises(PeerUnavailable, match="closed a connection of the bench, after b'too much'"):
        wire.receive()


def test_a_silent_server_is_given_up(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub_load, "WAIT_S", 0.0)
    with pytest.raises(PeerUnavailable, match="0 of 5 messages were done"):
        drive(PublishLoad(ends[0], Sized(10), bytes(50), 10, 7))


@given(st.binary(max_size=300))
def test_frames_are_as_a_server_reads_them(payload: bytes) -> None:
    assert FrameReader(1000).feed(masked(payload, 0x82)) == [payload]


# -- the whole


def small(tmp_path: Path, *parts: str) -> PubSubOptions:
    return replace(PubSubOptions(parts, folder=tmp_path).quick(), seconds=0.05)


def test_many_clients_for_real(tmp_path: Path) -> None:
    result = pubsub.run(small(tmp_path, "fanout", "idle", "recover", "growth"), Console(quiet=True))
    figures = {figure.name: figure.value for figure in result.figures}
    assert len(figures) == 8
    assert all(value > 0 for name, value in figures.items() if not name.startswith("memory"))
    assert {"with 100 messages stored", "with 1,000 messages stored"} <= figures.keys()
    assert len(result.goals) == 6
    assert list(tmp_path.iterdir()) == []


def test_publishes_beside_echoes_and_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ and Mosquitto are not there, as on most machines."""
    program = pubsub_peers._program

    def only_nats(name: str, *more: str) -> Path:
        if name != "nats-server":
            raise NotInstalled(f"{name} is not installed: install it")
        return program(name, *more)

    monkeypatch.setattr(pubsub_peers, "_program", only_nats)
    result = pubsub.run(small(tmp_path, "publish", "peers"), Console(quiet=True))
    figures = {figure.name: figure.value for figure in result.figures}
    assert len(figures) == 9
    assert min(figures.values()) > 0
    assert [text.split(":")[0] for text in result.absent] == [RABBITMQ, "Mosquitto QoS 2"]
    ratio, ahead, synced = result.goals
    assert ratio.value == pytest.approx(figures[SQLITE] / figures[PICOWS])
    assert NATS in ahead.name
    assert synced.wanted == 3
    assert POSTGRES not in figures


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(NotInstalled, match="no-such-broker is not installed"):
        pubsub_peers._program("no-such-broker")


def test_a_peer_that_does_not_begin(tmp_path: Path) -> None:
    with pubsub_peers._running([pubsub_peers._program("nats-server"), "-c", "no-such-file"], tmp_path) as process:
        process.wait()
        with pytest.raises(PeerUnavailable, match=r"does not begin: .*no-such-file"):
            pubsub_peers._dial(pubsub_peers._free_port(), process, tmp_path)


def test_goals_at_their_limits() -> None:
    assert Goal("", 1.0, 1.0).holds
    assert not Goal("", 0.99, 1.0).holds
    assert Goal("", 1.0, 1.0, is_limit=True).holds
    result = PubSubResult(200, 1000, goals=(Goal("a", 3, 2, is_limit=True), Goal("b", 3, 2)))
    assert result.misses == ["a: 3, and not at most 2"]
    assert not result.holds
    assert pubsub.tables(PubSubResult(200, 1000)) == []
    assert PubSubOptions().parts == PARTS


@pytest.mark.parametrize("url", ["postgresql://ann:secret@127.0.0.1:1/x", "nonsense"])
def test_a_server_that_is_not_there_is_no_fault_of_ours(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="no database can be created") as caught, new_database(url):
        pass
    assert "secret" not in str(caught.value)
