"""Reports of a blocked event loop, written as lines to the output because the loop cannot send.

The link is served by the loop. So the watchdog writes to the output pipe, with a nonce known only
to this child and the daemon; a line without the nonce is ordinary output.
"""

from __future__ import annotations

import re

import msgspec

__all__ = ("LINE_LIMIT", "BlockedLoop", "BlockedLoopReader", "line_of")

LINE_LIMIT = 4096
"""Maximum bytes of a line. A pipe writes that much atomically (``PIPE_BUF``)."""

_PLACE_LENGTH = 500
_WORD = b" stall "


class BlockedLoop(msgspec.Struct, frozen=True, array_like=True):
    """A step of user code that blocks the loop, or has blocked it.

    Attributes:
        incident: Number of this stall in the process; several lines may report one stall.
        number: Number of the task or trigger, as in the crash recorder.
        milliseconds: Duration so far, or in total if it is over.
        place: File, line and function at which it was seen.
        is_loading: It is importing code, which is slow only once.
        is_over: The loop runs again.
    """

    incident: int
    number: int
    milliseconds: int
    place: str
    is_loading: bool = False
    is_over: bool = False


def line_of(block: BlockedLoop, nonce: bytes) -> bytes:
    """Encode a stall as one line, short enough for an atomic write to the pipe."""
    place = block.place.encode("utf-8", "backslashreplace").decode()[-_PLACE_LENGTH:]
    body = msgspec.json.encode(msgspec.structs.replace(block, place=place))
    return b"\x1e" + nonce + _WORD + body + b"\n"


class BlockedLoopReader:
    """Extracts these lines from the output of a child, which may arrive in pieces.

    Args:
        nonce: The nonce of the child.
    """

    def __init__(self, nonce: str) -> None:
        self._head = b"\x1e" + nonce.encode() + _WORD
        self._line = re.compile(re.escape(self._head) + rb"([^\n]*)\n")
        self._decoder = msgspec.json.Decoder(BlockedLoop)
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[BlockedLoop]]:
        """Return the other output, and the stalls reported in it."""
        data = self._held + data
        blocks = [block for body in self._line.findall(data) if (block := self._decoded(body))]
        printed = self._line.sub(b"", data)
        keep = self._unfinished(printed)
        self._held = printed[keep:]
        return printed[:keep], blocks

    def _decoded(self, body: bytes) -> BlockedLoop | None:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError:
            return None  # other output was mixed in, in pieces too large to be atomic

    def _unfinished(self, data: bytes) -> int:
        """Return the start of an incomplete line, else the end of the data."""
        start = data.rfind(b"\x1e", max(0, len(data) - LINE_LIMIT))
        if start < 0:
            return len(data)
        tail = data[start : start + len(self._head)]
        return start if self._head.startswith(tail) else len(data)
