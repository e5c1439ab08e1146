"""A node without processes: a real engine on a real database, with the test as the executor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import unquote

import anyio
import argon2
import msgspec

from aioflow.api import Api
from aioflow.api.access.authentication import Passwords
from aioflow.api.schemas import CleanedView
from aioflow.author.codec import encode
from aioflow.clock import SystemClock
from aioflow.core.scheduling.slots import Slots
from aioflow.crypto import Vault
from aioflow.engine.loop import EffectDispatcher, Engine
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import Failure
from aioflow.processes.connection_tests import ConnectionTests
from aioflow.protocol.effects import AssignTrigger, DeliverOutbox, StartTry
from aioflow.protocol.inputs import FileBroken, FileParsed, HostUp
from aioflow.protocol.reports import Deferred, Failed, Succeeded
from aioflow.store import Store, open_store
from aioflow.store.sqlite import database_file
from aioflow.store.sqlite.lock import FileLock
from aioflow.telemetry.task_log import TaskLog

ONCE = RetryPolicy(tries=1)
QUICK = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)

CHAIN = DagSpec(
    dag_id="chain",
    file="chain.py",
    tasks=(
        TaskSpec(task_id="first", retry=ONCE),
        TaskSpec(task_id="second", parents=(0,)),
        TaskSpec(task_id="third", parents=(1,)),
    ),
    parameters=("day", "n"),
)
FAN = DagSpec(
    dag_id="fan",
    file="fan.py",
    tasks=(
        TaskSpec(task_id="list", feeds_limit=50_000),
        TaskSpec(
            task_id="each", parents=(0,), retry=ONCE, mapped=MapSpec((MapSource("item", 0, -1),))
        ),
        TaskSpec(task_id="total", parents=(1,)),
    ),
)

STREAM = DagSpec(
    dag_id="stream",
    file="stream.py",
    tasks=(
        TaskSpec(task_id="pages", body=Body.COROUTINE, streams=True, feeds_limit=50_000),
        TaskSpec(
            task_id="each", parents=(0,), retry=ONCE, mapped=MapSpec((MapSource("page", 0, -1),))
        ),
        TaskSpec(task_id="total", parents=(1,)),
    ),
)


class EffectRecorder:
    """Records the effects of an engine. The test acts as the executor."""

    def __init__(self, dispatcher: EffectDispatcher) -> None:
        dispatcher.register(
            {
                **dict.fromkeys(dispatcher.unhandled, self._ignore),
                StartTry: self._start_try,
                AssignTrigger: self._assign_trigger,
                DeliverOutbox: self._deliver,
            }
        )
        self.starts: list[StartTry] = []
        self.delivered: list[DeliverOutbox] = []
        self.hosted: list[AssignTrigger] = []
        self._arrived = anyio.Event()

    def _ignore(self, *effect: object) -> None:
        """Do nothing: no trigger is hosted here."""

    def _deliver(self, effect: DeliverOutbox) -> None:
        self.delivered.append(effect)

    def _assign_trigger(self, effect: AssignTrigger) -> None:
        self.hosted.append(effect)

    def _start_try(self, effect: StartTry) -> None:
        self.starts.append(effect)
        self._arrived.set()

    async def next_start(self) -> StartTry:
        while not self.starts:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self.starts.pop(0)


class Node(NamedTuple):
    engine: Engine
    store: Store
    api: Api
    effects: EffectRecorder
    home: Path

    def define(self, *specs: DagSpec) -> None:
        self.engine.report([HostUp("async"), HostUp("triggers")])
        for spec in specs:
            source = {spec.file: b"import aioflow"}
            version = f"v-{spec.dag_id}"
            self.engine.report(
                [FileParsed(file=spec.file, version=version, dags=(spec,), sources=source)]
            )

    def break_file(self, file: str) -> None:
        self.engine.report([FileBroken(file=file, reason="syntax_error", message="line 3: what")])

    async def succeed(
        self, value: object = None, *, width: int | None = None, again: bool = False
    ) -> StartTry:
        effect = await self.effects.next_start()
        start, now = effect.start, SystemClock().now()
        body = None if value is None or width is not None else encode(value, "the result")
        size = 0 if body is None else len(body)
        number, count = start.start_no, size or width or 0
        self.engine.report(
            [Succeeded(start.task_no, number, now, now, body, count, width, again=again)]
        )
        return effect

    async def defer(self, class_path: str, fields: dict[str, Any]) -> None:
        start, now = (await self.effects.next_start()).start, SystemClock().now()
        kwargs = encode(fields, "the fields")
        self.engine.report(
            [Deferred(start.task_no, start.start_no, now, now, class_path, kwargs, "resume")]
        )

    async def fail(self, message: str = "no") -> None:
        start, now = (await self.effects.next_start()).start, SystemClock().now()
        failure = Failure(type="ValueError", message=message, reason="raised")
        self.engine.report([Failed(start.task_no, start.start_no, now, now, failure)])


async def nothing_is_old(dry_run: bool) -> CleanedView:
    return CleanedView()


@cache
def _migrated() -> bytes:
    """Return a database with the schema and no rows."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "aioflow.db"
        lock = FileLock.take(path)
        database_file.prepare_file(path, lock)
        lock.release()
        return path.read_bytes()


@asynccontextmanager
async def node(
    home: Path,
    *,
    url: str | None = None,
    cpu_slots: int = 2,
    passwords: Passwords | None = None,
) -> AsyncIterator[Node]:
    """Run a node. It computes fast password hashes, unless other passwords are passed.

    Args:
        url: A database with the schema; by default a file in the home.
    """
    home.mkdir(parents=True, exist_ok=True)
    database = home / "aioflow.db"
    if url is None and not database.exists():
        database.write_bytes(_migrated())
    clock = SystemClock()
    vault = Vault.open(home / "key")
    async with (
        open_store(url or f"sqlite:///{database}", vault) as store,
        anyio.create_task_group() as group,
    ):
        engine = Engine(
            store, Slots(cpu_slots=cpu_slots, async_slots=10), clock=clock, random=lambda: 0.5
        )
        effects = EffectRecorder(engine.dispatcher)
        await group.start(engine.run)
        tasklog = TaskLog(home / "logs", clock)
        await group.start(tasklog.run)
        api = Api(
            engine,
            store,
            tasklog,
            clock=clock,
            started_at=clock.now(),
            home=home,
            vault=vault,
            clean=nothing_is_old,
            passwords=passwords or Passwords(QUICK),
            connection_tests=ConnectionTests(),
        )
        engine.dispatcher.subscribe(api.committed)
        group.start_soon(api.reads.commits.run)
        yield Node(engine, store, api, effects, home)
        group.cancel_scope.cancel()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def items(self) -> Any:
        """The items of a page of a list."""
        return self.json["items"]


async def ask(
    app: Any,
    method: str,
    target: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    pieces: list[bytes] | None = None,
    meanwhile: Callable[[], Awaitable[object]] | None = None,
) -> Answer:
    """Call an ASGI application as a server would. ``pieces`` are sent without a content length.

    ``meanwhile`` runs before the last piece is sent.
    """
    given = {"host": "127.0.0.1:8793", **(headers or {})}
    if pieces is None:
        pieces = [body]
        given["content-length"] = str(len(body))
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8793),
    }
    waiting = [
        {"type": "http.request", "body": piece, "more_body": index + 1 < len(pieces)}
        for index, piece in enumerate(pieces)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if len(waiting) == 1 and meanwhile is not None:
            await meanwhile()
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        if not sent:  # else the server would only have logged it
            raise
    return Answer(
        sent[0]["status"],
        {name.decode(): value.decode() for name, value in sent[0]["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )
