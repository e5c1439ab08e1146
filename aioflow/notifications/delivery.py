"""Deliveries: their queue, and their inputs: the run, its code, and the values that it may read.

The queue returns alerts first, and then the deliveries of one DAG after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from aioflow.core.state.task_instance import run_info
from aioflow.model.dag import CallbackSpec, DagSpec, ValueKind
from aioflow.model.decisions import DecisionRow
from aioflow.model.ids import RunNo, TriggerNo
from aioflow.model.page_links import dag_page, task_page
from aioflow.model.rows import RunRow, VersionRow
from aioflow.model.states import Failure
from aioflow.protocol.commands import Notify, RunCallback, RunInfo
from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.outbox import ALERT, Alert, Asked, Callback
from aioflow.redaction import Masks, secret_texts
from aioflow.store import Store
from aioflow.telemetry.task_log import LogKey

__all__ = (
    "DeliveryQueue",
    "ImpossibleDelivery",
    "Job",
    "PreparedDelivery",
    "Preparing",
    "Targets",
)

BURST = 50
"""Maximum consecutive deliveries of one DAG while other DAGs' deliveries wait.

Consecutive deliveries of a DAG share a process that has loaded its code.
"""


class Job(msgspec.Struct, frozen=True):
    """A delivery in the queue.

    Attributes:
        attempts: Number of failed tries so far.
    """

    effect: DeliverOutbox
    attempts: int = 0


class DeliveryQueue:
    """The queue of deliveries, grouped by their kind: alerts, or the callbacks of one DAG."""

    def __init__(self) -> None:
        self._by_kind: dict[str, deque[Job]] = {}
        self._burst = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_kind.values()))

    def put(self, job: Job) -> None:
        """Add a delivery after the others of its kind."""
        self._by_kind.setdefault(job.effect.kind, deque()).append(job)

    def take(self, like: str = "") -> Job | None:
        """Return the next delivery, preferably of the kind ``like``; ``None`` if none is left."""
        if ALERT in self._by_kind:
            return self._pop(ALERT)
        if like in self._by_kind and (self._burst < BURST or len(self._by_kind) == 1):
            self._burst += 1
            return self._pop(like)
        self._burst = 1
        kind = next(iter(self._by_kind), None)
        if kind is None:
            return None
        jobs = self._by_kind.pop(kind)
        self._by_kind[kind] = jobs  # moved to the end of the order
        return self._pop(kind)

    def _pop(self, kind: str) -> Job:
        jobs = self._by_kind[kind]
        job = jobs.popleft()
        if not jobs:
            del self._by_kind[kind]
        return job


_CACHE_LIMIT = 256

Key = TypeVar("Key")
Cached = TypeVar("Cached")


class ImpossibleDelivery(Exception):
    """A delivery can never be made. The message says why."""


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """Targets of alerts, besides the log.

    Attributes:
        webhook: The URL to send to; empty for none.
        webhook_secret: Name of a secret that contains the URL, instead of ``webhook``.
        signing_secret: Name of the secret that signs requests.
        email: Addresses.
        connection: Name of the connection that sends mail.
    """

    webhook: str = ""
    webhook_secret: str = ""
    signing_secret: str = ""
    email: tuple[str, ...] = ()
    sender: str = ""
    connection: str = "smtp"

    @property
    def is_empty(self) -> bool:
        """True if alerts go only to the log."""
        return not (self.webhook or self.webhook_secret or self.email)

    @property
    def names(self) -> tuple[tuple[ValueKind, str], ...]:
        """The secrets and the connection that an alert needs."""
        secrets = dict.fromkeys((self.webhook_secret, self.signing_secret))
        found = [(ValueKind.SECRET, name) for name in secrets if name]
        mail = [(ValueKind.CONNECTION, self.connection)] if self.email else []
        return (*found, *mail)


class PreparedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """An outbox effect, with all the data needed to deliver it.

    Attributes:
        version: Version whose code the delivery needs; empty for none.
        interpreter: Interpreter of that version; empty for the daemon's own.
        what: Fields for the daemon's log.
        log: Log for the output of the delivery; ``None`` for the daemon's log.
    """

    job: Job
    command: RunCallback | Notify
    version: str
    what: dict[str, str]
    info: RunInfo | None = None
    log: LogKey | None = None
    interpreter: str = ""


class Preparing:
    """Reads the inputs of deliveries, and caches those that many deliveries share.

    Args:
        restore: Recreates a version's source folder if it is missing.
        needs_values: Whether declared secrets, connections and variables must exist.
        describe: Describes an open decision, with its links.
        public_url: The address of the page; empty for messages without links.

    Attributes:
        targets: Targets of alerts.
    """

    def __init__(
        self,
        store: Store,
        masks: Masks,
        targets: Targets,
        restore: Callable[[VersionRow], Awaitable[None]],
        *,
        needs_values: bool,
        describe: Callable[[DecisionRow], Asked] = Asked.about,
        public_url: str = "",
    ) -> None:
        self._describe = describe
        self._public_url = public_url
        self._needs_values = needs_values
        self._store = store
        self._masks = masks
        self.targets = targets
        self._restore = restore
        self._runs: dict[RunNo, RunRow] = {}
        self._specs: dict[tuple[str, str], DagSpec] = {}

    async def alert(self, job: Job) -> PreparedDelivery | None:
        """Prepare an alert. Return ``None`` if alerts go only to the log.

        Raises:
            ImpossibleDelivery: If a secret or connection does not exist.
            StoreUnavailable: If the database does not answer.
        """
        targets = self.targets
        if targets.is_empty:
            return None
        command = Notify(
            job.effect.outbox_no,
            job.effect.body,
            targets.webhook,
            targets.webhook_secret,
            targets.signing_secret,
            targets.email,
            targets.sender,
            targets.connection,
            targets.names,
            await self._values(targets.names),
            self._url_of(msgspec.msgpack.decode(job.effect.body, type=Alert)),
        )
        return PreparedDelivery(job=job, command=command, version="", what={"callback": "alert"})

    def _url_of(self, alert: Alert) -> str:
        """Return the URL of the page about an alert's task or DAG; empty if it is about neither."""
        if alert.run_id:
            return task_page(self._public_url, alert.run_id, alert.task_id)
        return dag_page(self._public_url, alert.dag_id) if alert.dag_id else ""

    async def callback(self, job: Job) -> PreparedDelivery | None:
        """Prepare the call of an author's callback.

        Return ``None`` if it is about a decision that has ended meanwhile.

        Raises:
            ImpossibleDelivery: If its run or code was deleted, or a value it needs does not exist.
            StoreUnavailable: If the database does not answer.
        """
        callback = msgspec.msgpack.decode(job.effect.body, type=Callback)
        row = await self._run(callback.run_no)
        spec = await self._spec(row)
        callbacks = spec.callbacks
        what = {"callback": f"on_{callback.event}", "run_id": row.run_id}
        log = LogKey(
            run_no=row.run_no,
            task_index=callback.task_index,
            map_index=callback.map_index,
            task_no=callback.task_no,
            start_no=callback.start_no,
            try_number=callback.try_number,
        )
        task_id = ""
        if callback.task_index >= 0:
            task = spec.tasks[callback.task_index]
            callbacks, task_id = task.callbacks, task.task_id
            index = "" if callback.map_index < 0 else f"[{callback.map_index}]"
            what["task_id"] = f"{task_id}{index}"
        names = _names(callbacks) if self._needs_values else ()
        if callback.task_index < 0 and callback.event == "failure" and callback.failure is None:
            failure = await self._failure_of(row, spec)
            callback = msgspec.structs.replace(callback, failure=failure)
        if callback.decision_no >= 0:
            asked = await self._asked(callback.decision_no)
            if asked is None:
                return None
            callback = msgspec.structs.replace(callback, asked=asked)
        url = task_page(self._public_url, row.run_id, task_id, callback.map_index)
        body = msgspec.msgpack.encode(msgspec.structs.replace(callback, url=url))
        command = RunCallback(
            job.effect.outbox_no, row.run_no, body, names, await self._values(names)
        )
        info = run_info(row, spec.file)
        return PreparedDelivery(
            job=job,
            command=command,
            version=row.version,
            what=what,
            info=info,
            log=log,
            interpreter=spec.interpreter,
        )

    async def _asked(self, decision_no: TriggerNo) -> Asked | None:
        found = await self._store.find_decisions([decision_no])
        is_open = bool(found) and found[0].outcome is None
        return self._describe(found[0]) if is_open else None

    async def _run(self, run_no: RunNo) -> RunRow:
        row = self._runs.get(run_no)
        if row is None:
            row = await self._store.find_run_no(run_no)
            if row is None:
                raise ImpossibleDelivery(f"its run, number {run_no}, is gone")
            _remember(self._runs, run_no, row)
        return row

    async def _failure_of(self, run: RunRow, spec: DagSpec) -> Failure | None:
        """Return the error of the run's first failed task, prefixed with that task's name."""
        row = await self._store.find_first_failed(run.run_no)
        if row is None or row.failure is None or row.task_index >= len(spec.tasks):
            return None
        index = "" if row.map_index < 0 else f"[{row.map_index}]"
        message = f"{spec.tasks[row.task_index].task_id}{index}: {row.failure.message}"
        return msgspec.structs.replace(row.failure, message=message)

    async def _spec(self, row: RunRow) -> DagSpec:
        known = self._specs.get((row.version, row.dag_id))
        if known is not None:
            return known
        version = await self._store.find_version(row.version)
        for spec in () if version is None else version.dags:
            if spec.dag_id == row.dag_id and version is not None:
                await self._restore(version)
                _remember(self._specs, (row.version, row.dag_id), spec)
                return spec
        raise ImpossibleDelivery(f"the code of run {row.run_id} is gone")

    async def _values(self, names: Sequence[tuple[ValueKind, str]]) -> tuple[bytes, ...]:
        found = []
        for kind, name in names:
            row = await self._store.find_value(kind, name)
            if row is None:
                raise ImpossibleDelivery(
                    f"there is no {kind} {name!r}; set it: aioflow {kind}s set {name}"
                )
            if row.value is None:
                raise ImpossibleDelivery(
                    f"no key of this home can decrypt {kind} {name!r}; set it again"
                )
            self._masks.hide(secret_texts(kind, name, msgspec.msgpack.decode(row.value)))
            found.append(row.value)
        return tuple(found)


def _names(callbacks: CallbackSpec | None) -> tuple[tuple[ValueKind, str], ...]:
    return () if callbacks is None else callbacks.values


def _remember(cache: dict[Key, Cached], key: Key, value: Cached) -> None:
    """Add an entry to a cache; if the cache is full, drop the oldest entry."""
    cache[key] = value
    if len(cache) > _CACHE_LIMIT:
        del cache[next(iter(cache))]
