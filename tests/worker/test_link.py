from __future__ import annotations

import socket

import anyio
import msgspec
import pytest

from aioflow.errors import Unserializable
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.reports import Pong, Report, TriggerFired
from aioflow.worker.link import (
    FRAME_LIMIT,
    FRAME_MESSAGES,
    MESSAGE_LIMIT,
    daemon_link,
    frames,
    packed,
)


def fired(key: str | None = None, payload: bytes = b"") -> TriggerFired:
    return TriggerFired(1, 1, 0, 1, payload, key)


def messages_of(frame: bytearray) -> list[Report]:
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    return msgspec.msgpack.decode(frame[4:], type=list[Report])


def test_many_messages_are_cut_into_frames_and_keep_their_order():
    sent = [fired(str(number)) for number in range(2 * FRAME_MESSAGES + 1)]

    got = [messages_of(frame) for frame in frames(sent)]

    assert [len(frame) for frame in got] == [FRAME_MESSAGES, FRAME_MESSAGES, 1]
    assert [report for frame in got for report in frame] == sent


def test_large_messages_make_no_frame_that_is_too_long():
    host = StartTrigger(1, 1, 1, 1, "v", "c", b"x" * 1024 * 1024, 0, None)

    sizes = [len(frame) for frame in frames([host] * 200)]

    assert len(sizes) > 1
    assert max(sizes) < FRAME_LIMIT


def test_the_largest_message_fits_behind_a_frame_that_is_almost_full():
    almost = packed(fired(payload=bytes(16 * 1024 * 1024 - 100)))
    largest = packed(fired(payload=bytes(MESSAGE_LIMIT - 100)))

    (frame,) = frames([almost, largest])

    assert len(frame) - 4 <= FRAME_LIMIT


def test_nothing_is_an_empty_frame():
    assert [messages_of(frame) for frame in frames([])] == [[]]


def test_a_packed_message_travels_like_the_message():
    assert list(frames([packed(fired("k"))])) == list(frames([fired("k")]))


PONG = msgspec.msgpack.encode(Pong())
BAD_TEXT = msgspec.msgpack.encode([fired("??")]).replace(b"??", b"\xff\xfe")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x91\xc1", id="no-msgpack"),
        pytest.param(BAD_TEXT, id="bad-text"),
        pytest.param(b"\x91\x96" + PONG[1:] + b"\x91" * 100_000 + b"\xc0", id="too-deep"),
    ],
)
async def test_what_cannot_be_decoded_ends_the_link_after_what_came_before(content):
    ours, theirs = socket.socketpair()
    got: list[Report] = []
    closed: list[str] = []
    ended = anyio.Event()

    def on_closed(why: str) -> None:
        closed.append(why)
        ended.set()

    with theirs:
        link = await daemon_link(ours, got.extend, on_closed)
        theirs.sendall(b"".join(frames([Pong()])))
        theirs.sendall(len(content).to_bytes(4, "little") + content)
        with anyio.fail_after(30):
            await ended.wait()
    assert (got, len(closed), link.is_open) == ([Pong()], 1, False)
    assert closed[0] not in {"", "the other end closed the link"}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(fired("\ud800"), id="no-text"),
        pytest.param(fired(payload=bytes(MESSAGE_LIMIT)), id="too-large"),
        pytest.param(TriggerFired(1, 1, 0, 2**64, b""), id="number-too-large"),
    ],
)
def test_unserializable_messages_are_refused_before_they_are_buffered(message):
    with pytest.raises(Unserializable, match="TriggerFired"):
        packed(message)
