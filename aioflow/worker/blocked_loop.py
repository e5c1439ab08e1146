"""What a host says of a step that holds up its loop: a line on its output, since the loop cannot.

The link is the loop's. So the watchdog writes to the pipe that carries what is printed, with a
nonce that only this host and the daemon know; without that a line is what somebody printed.
"""

from __future__ import annotations

import re

import msgspec

__all__ = ("LINE_LIMIT", "Stall", "StallLines", "line_of")

LINE_LIMIT = 4096
"""Bytes. A pipe takes so many in one piece (``PIPE_BUF``), whoever else writes to it."""

_PLACE_LENGTH = 500
_WORD = b" stall "


class Stall(msgspec.Struct, frozen=True, array_like=True):
    """One step of user code holds up the loop, or has done so.

    Attributes:
        incident: Counts the stalls of this process; of one there are several lines.
        number: Whose step, as the black box has it.
        milliseconds: How long so far, or in all.
        place: File, line and function where it stood.
        is_loading: It imports code, which is slow once and not again.
        is_over: The loop turns again.
    """

    incident: int
    number: int
    milliseconds: int
    place: str
    is_loading: bool = False
    is_over: bool = False


def line_of(stall: Stall, nonce: bytes) -> bytes:
    """Return the line that says so, in one piece for the pipe."""
    place = stall.place.encode("utf-8", "backslashreplace").decode()[-_PLACE_LENGTH:]
    body = msgspec.json.encode(msgspec.structs.replace(stall, place=place))
    return b"\x1e" + nonce + _WORD + body + b"\n"


class StallLines:
    """Takes these lines out of what a host prints; they may come in pieces.

    Args:
        nonce: The host's.
    """

    def __init__(self, nonce: str) -> None:
        self._head = b"\x1e" + nonce.encode() + _WORD
        self._line = re.compile(re.escape(self._head) + rb"([^\n]*)\n")
        self._decoder = msgspec.json.Decoder(Stall)
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[Stall]]:
        """Return what was printed, and what was said in between."""
        data = self._held + data
        stalls = [stall for body in self._line.findall(data) if (stall := self._decoded(body))]
        printed = self._line.sub(b"", data)
        keep = self._unfinished(printed)
        self._held = printed[keep:]
        return printed[:keep], stalls

    def _decoded(self, body: bytes) -> Stall | None:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError:
            return None  # something else wrote into the pipe, and more than fits into one piece

    def _unfinished(self, data: bytes) -> int:
        """Return where a line begins whose end has not come yet, else the end."""
        start = data.rfind(b"\x1e", max(0, len(data) - LINE_LIMIT))
        if start < 0:
            return len(data)
        tail = data[start : start + len(self._head)]
        return start if self._head.startswith(tail) else len(data)
