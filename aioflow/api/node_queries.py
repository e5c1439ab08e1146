"""Queries of a standby to the active node, for requests that cannot be answered from rows.

A query is either a whole HTTP request of a caller whom the standby has authenticated, or a change
that the standby itself makes: an audit entry, the use of a token, the session of a first visit. It
is encrypted with the key that all nodes share and sent through the database. The answer comes back
in the same way. The active node checks the caller again.

If the active node dies, it is unknown whether the query was executed. So the query is sent again,
once, to the next active node, but only if it may be executed twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup

from aioflow.api.access.authentication import Caller
from aioflow.clock import Clock
from aioflow.crypto import Vault
from aioflow.errors import NoActiveNode, StoreError
from aioflow.model.access import Actor, SessionRow
from aioflow.protocol.requests import Note, NoteUse, OpenSession
from aioflow.store.node_messages import NodeMessage, NodeMessages
from aioflow.telemetry.log import Logger

__all__ = (
    "QUERY_SECONDS",
    "READ_SECONDS",
    "Answer",
    "HttpAnswer",
    "HttpQuery",
    "NodeQueries",
    "OwnAnswer",
    "OwnQuery",
    "Query",
)

QUERY_SECONDS = 5.0
"""Timeout of a query."""

READ_SECONDS = 2.0
"""Timeout of a query that only reads, and can be answered from rows instead."""

_POLL_SECONDS = 0.25

_TAKE_SECONDS = 1.0
"""Interval between checks for messages that no notification has announced."""

_AT_ONCE = 32
_QUERY, _ANSWER = "node_query", "node_answer"  # purposes for which bodies are encrypted

_log = Logger(__name__)


class HttpQuery(msgspec.Struct, frozen=True, kw_only=True, tag="http"):
    """An HTTP request that is answered on behalf of a caller.

    Attributes:
        request_id: Its id in responses and logs.
        address: The client's address; empty over the home's socket.
        caller: The caller; ``None`` for a request that needs no authentication.
        cookie: The value of the caller's session cookie.
        cookie_name: The name of that cookie, which depends on the home.
    """

    method: str
    scheme: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    request_id: str
    address: str
    caller: Caller | None
    cookie: str | None
    cookie_name: str


class OwnQuery(msgspec.Struct, frozen=True, kw_only=True, tag="own"):
    """A change that the standby makes on its own behalf."""

    request: Note | NoteUse | OpenSession
    actor: Actor | None


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="http"):
    """The response to an HTTP request."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class OwnAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="own"):
    """The response to an ``OwnQuery``.

    Attributes:
        session: The session, if one was opened.
        refusal: Why the query was refused; empty if it was not.
    """

    session: SessionRow | None = None
    refusal: str = ""


Query: TypeAlias = HttpQuery | OwnQuery
Answer: TypeAlias = HttpAnswer | OwnAnswer
Respond: TypeAlias = Callable[[Query], Awaitable[Answer]]

_encoder = msgspec.msgpack.Encoder()
_queries = msgspec.msgpack.Decoder(Query)
_answers = msgspec.msgpack.Decoder(Answer)


class NodeQueries:
    """Sends the queries of this node to the active node, and answers queries of other nodes.

    Args:
        vault: Contains the key that all nodes share.
        own_epoch: Returns the term of this node; ``None`` before it has joined.
        active_epoch: Returns the term of the active node; ``None`` if none is known.

    Attributes:
        respond: Answers queries; ``None`` while this node is not active.
    """

    def __init__(
        self,
        messages: NodeMessages,
        vault: Vault,
        clock: Clock,
        *,
        own_epoch: Callable[[], int | None],
        active_epoch: Callable[[], int | None],
    ) -> None:
        self._messages = messages
        self._vault = vault
        self._clock = clock
        self._own_epoch = own_epoch
        self._active_epoch = active_epoch
        self._waiting: dict[int, _Pending] = {}
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        self._pause = anyio.CancelScope()
        self.respond: Respond | None = None

    @property
    def has_active(self) -> bool:
        """Whether there is an active node that may answer."""
        return self._active_epoch() is not None

    async def ask(
        self, query: Query, *, is_repeatable: bool, seconds: float = QUERY_SECONDS
    ) -> Answer:
        """Return the answer of the active node.

        Args:
            is_repeatable: Whether the query may be executed twice.
            seconds: Time limit for all attempts together.

        Raises:
            NoActiveNode: If no node is active, or it has not answered in time or has died.
            StoreUnavailable: If the database does not answer.
        """
        until = self._clock.monotonic_us() + round(seconds * 1e6)
        active = self._active_epoch()
        if active is None:
            raise NoActiveNode(is_sent=False)
        answer = await self._ask_once(query, active, until)
        if answer is None and is_repeatable:
            successor = await self._find_successor(active, until)
            if successor is not None:
                answer = await self._ask_once(query, successor, until)
        if answer is None:
            raise NoActiveNode(is_sent=True)
        return answer

    async def run(self) -> None:
        """Receive messages until cancelled, and answer those that are queries."""
        async with anyio.create_task_group() as group:
            while True:
                epoch = self._own_epoch()
                if epoch is None:
                    await self._clock.sleep(_POLL_SECONDS)
                    continue
                try:
                    for message in await self._messages.take(epoch):
                        self._receive(message, epoch, group)
                except StoreError as exc:
                    _log.warning("messages of other nodes cannot be read", error=str(exc))
                    await self._clock.sleep(_POLL_SECONDS)
                await self._wait(epoch)

    def renew_term(self) -> None:
        """Receive messages for this node's new term, and no longer those for the last one."""
        self._pause.cancel()

    async def _wait(self, epoch: int) -> None:
        """Wait for a message or for a new term of this node, at most until the next check."""
        if self._own_epoch() == epoch:
            with anyio.CancelScope() as self._pause:
                await self._messages.wait(epoch, _TAKE_SECONDS)

    async def _ask_once(self, query: Query, to_epoch: int, until: int) -> Answer | None:
        """Return the answer; ``None`` if it is late, or the other node is no longer active."""
        own = self._own_epoch()
        left = self._seconds_until(until)
        if own is None or left <= 0:
            return None
        query_no = secrets.randbits(62)
        body = self._vault.encrypt(_QUERY, query_no, _encoder.encode(query))
        message = NodeMessage(query_no=query_no, is_answer=False, from_epoch=own, body=body)
        pending = self._waiting[query_no] = _Pending()
        try:
            await self._messages.send(message, to_epoch=to_epoch, seconds=left)
            while pending.answer is None and self._seconds_until(until) > 0:
                if self._active_epoch() != to_epoch:
                    return None
                with anyio.move_on_after(min(_POLL_SECONDS, self._seconds_until(until))):
                    await pending.arrived.wait()
            return pending.answer
        finally:
            del self._waiting[query_no]

    async def _find_successor(self, dead: int, until: int) -> int | None:
        """Wait until a node other than ``dead`` is active. Return its term."""
        while self._seconds_until(until) > 0:
            active = self._active_epoch()
            if active is not None and active != dead:
                return active
            await self._clock.sleep(min(_POLL_SECONDS, max(self._seconds_until(until), 0.0)))
        return None

    def _seconds_until(self, until: int) -> float:
        return (until - self._clock.monotonic_us()) / 1e6

    def _receive(self, message: NodeMessage, epoch: int, group: TaskGroup) -> None:
        table = _ANSWER if message.is_answer else _QUERY
        plain = self._vault.decrypt(table, message.query_no, message.body)
        if plain is None:
            _log.warning("a message of another node cannot be decrypted: the keys differ")
            return
        try:
            if message.is_answer:
                pending = self._waiting.get(message.query_no)
                if pending is not None:
                    pending.put(_answers.decode(plain))
                return
            query = _queries.decode(plain)
        except msgspec.DecodeError as exc:
            _log.warning("a message of another node cannot be understood", error=str(exc))
            return
        if self.respond is not None:
            group.start_soon(self._answer, query, message, epoch, self.respond)

    async def _answer(
        self, query: Query, message: NodeMessage, epoch: int, respond: Respond
    ) -> None:
        with anyio.move_on_after(QUERY_SECONDS):
            async with self._limiter:
                answer = await respond(query)
            number = message.query_no
            body = self._vault.encrypt(_ANSWER, number, _encoder.encode(answer))
            reply = NodeMessage(query_no=number, is_answer=True, from_epoch=epoch, body=body)
            try:
                await self._messages.send(reply, to_epoch=message.from_epoch, seconds=QUERY_SECONDS)
            except StoreError as exc:
                _log.warning("an answer to another node was not sent", error=str(exc))


class _Pending:
    """A query that has not been answered yet."""

    def __init__(self) -> None:
        self.arrived = anyio.Event()
        self.answer: Answer | None = None

    def put(self, answer: Answer) -> None:
        self.answer = answer
        self.arrived.set()
