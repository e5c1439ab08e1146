"""Memory budget of responses: bounded in total and per caller.

A large response waits for its share of the budget before any of its data is read, and is rejected
if there is none in time. The data is sent in pieces, so that the connection holds no second copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aioflow.web.problems import problem

__all__ = ("IN_ALL", "PER_CALLER", "PIECE", "BudgetShare", "BudgetedResponse", "ResponseBudget")

IN_ALL = 64 * 1024 * 1024
PER_CALLER = 16 * 1024 * 1024
"""Bytes: of all responses together, and of those for one user or one token."""

PIECE = 64 * 1024

_PATIENCE_SECONDS = 5.0
_AGAIN_SECONDS = 5
_TOO_MUCH = "web.too_much_held"


class BudgetShare:
    """The share of one response.

    Attributes:
        size: In bytes.
    """

    def __init__(self, budget: ResponseBudget, who: str, size: int) -> None:
        self.size = 0
        self._budget = budget
        self._who = who
        self.resize(size)

    def resize(self, size: int) -> None:
        """Change the share; 0 releases it."""
        self._budget.add(self._who, size - self.size)
        self.size = size


class ResponseBudget:
    """Counts the bytes that responses hold."""

    def __init__(self, *, in_all: int = IN_ALL, of_one: int = PER_CALLER) -> None:
        self._in_all = in_all
        self._of_one = of_one
        self._of: Counter[str] = Counter()
        self._stirred = anyio.Event()

    @property
    def total(self) -> int:
        """Bytes held in total."""
        return self._of.total()

    def is_full_for(self, who: str, size: int) -> bool:
        """Return whether this many more bytes would exceed a caller's limit."""
        return self._of[who] + size > self._of_one

    def add(self, who: str, size: int) -> None:
        """Add bytes, or subtract them; called by ``BudgetShare``."""
        self._of[who] += size
        if not self._of[who]:
            del self._of[who]
        if size < 0:
            self._stirred.set()

    async def take(self, who: str, size: int, *, patience_seconds: float) -> BudgetShare | None:
        """Acquire a share, which has to be released; ``None`` after the timeout."""
        with anyio.move_on_after(patience_seconds):
            while self.is_full_for(who, size) or self.total + size > self._in_all:
                self._stirred = anyio.Event() if self._stirred.is_set() else self._stirred
                await self._stirred.wait()
            return BudgetShare(self, who, size)
        return None


class BudgetedResponse(Response):
    """A response that is created when the budget allows, and sent in pieces.

    Args:
        who: The caller.
        size: Maximum size while it is created.
        make: Creates the response. Its errors are handled like those of any route.
    """

    def __init__(
        self, budget: ResponseBudget, who: str, size: int, make: Callable[[], Awaitable[Response]]
    ) -> None:
        super().__init__()
        self._budget = budget
        self._who = who
        self._size = min(size, PER_CALLER)
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the framework."""
        share = await self._budget.take(self._who, self._size, patience_seconds=_PATIENCE_SECONDS)
        if share is None:
            await self._refusal()(scope, receive, send)
            return
        try:
            answer = await self._make()
            share.resize(len(answer.body))
            await _send_in_pieces(answer, send)
        finally:
            share.resize(0)

    def _refusal(self) -> Response:
        again = {"retry-after": str(_AGAIN_SECONDS)}
        if self._budget.is_full_for(self._who, self._size):
            detail = "you have asked for more than you take; take what has come, or ask for less"
            return problem(429, _TOO_MUCH, detail, again)
        return problem(503, _TOO_MUCH, "others ask for as much as there is room for", again)


async def _send_in_pieces(answer: Response, send: Send) -> None:
    head = {"status": answer.status_code, "headers": answer.raw_headers}
    await send({"type": "http.response.start", **head})
    body = memoryview(answer.body)
    for at in range(0, max(len(body), 1), PIECE):
        piece = bytes(body[at : at + PIECE])
        more = at + PIECE < len(body)
        await send({"type": "http.response.body", "body": piece, "more_body": more})
