"""A simulator for tests of DAGs: a whole node in one process, on virtual time."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from datetime import date, datetime
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar

import anyio
import msgspec

from aioflow.api import Api
from aioflow.author.callbacks import Notification
from aioflow.author.dag import DAG, registered
from aioflow.author.dag_spec import describe
from aioflow.author.duration import Duration, microseconds
from aioflow.errors import DagError
from aioflow.model.access import Actor, Role
from aioflow.model.dag import Reprocess, TaskSpec
from aioflow.model.timestamps import to_datetime, to_timestamp
from aioflow.model.workers import LOCAL
from aioflow.protocol.inputs import FileParsed
from aioflow.testing.code import LoadedCodeCache, Replaceable, Understudies
from aioflow.testing.collect import BEGINS_AT, aware
from aioflow.testing.crash_test import Ending, ending_of, play_crashing_everywhere
from aioflow.testing.fake_time import Stalled, virtual_time_in
from aioflow.testing.runs import RunStuck, SimBackfill, SimRun
from aioflow.testing.sim_node import Node, SimNode

__all__ = ("Sim",)

T = TypeVar("T")

_logger = logging.getLogger("aioflow.testing")


class Sim:
    """A node with an empty database, on a clock that advances only while the test awaits.

    The engine, the database, the hosts of coroutines and triggers, and every message in between are
    real; processes and time are not. Bodies run in this process, so anything that a test replaces
    is replaced for them, too.

    Use it as a context manager, or through the fixture ``sim``.

    Args:
        at: Start of the virtual clock; a naive datetime counts as UTC.
        on_standstill: Called with a text that says what the simulation waits for, whenever it has
            waited for 10 s of real time. By default the text is logged as a warning; the fixture
            writes it to the terminal at once.
    """

    def __init__(
        self,
        *,
        at: datetime = BEGINS_AT,
        on_standstill: Callable[[str], object] = _logger.warning,
    ) -> None:
        self._code_cache = LoadedCodeCache()
        self._world = SimNode(to_timestamp(aware(at)), self._code_cache, on_standstill)
        self._understudies = Understudies()
        self._dags: dict[str, DAG] = {}
        self._keys = itertools.count(1)
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        unknown = self._understudies.unknown()
        self.close()
        if unknown is not None and error is None:
            raise LookupError(unknown)

    def close(self) -> None:
        """Stop the node, and restore the clock and the tasks. Idempotent."""
        self._world.close()
        self._closing.close()
        self._understudies.leave()

    # ── actions ─────────────────────────────────────────────────────────────────────────

    async def start(self, dag: DAG, /, **params: Any) -> SimRun:
        """Start a run, and process everything that is due at the current virtual time.

        The DAG's own schedule is paused; see ``schedule``.

        Raises:
            DagError: If the DAG is invalid.
            BadConf: If the parameters are invalid.
        """
        key = f"sim-{next(self._keys)}"

        async def begin() -> str:
            await self._enter(dag, paused=True)
            conf = params or None
            made = await self._world.ask(
                lambda node: node.api.trigger(dag.dag_id, conf=conf, key=key)
            )
            await self._world.stillness()
            return made.run_id

        return SimRun(self, dag, await self._do(begin))

    async def schedule(self, dag: DAG, /) -> None:
        """Let a DAG's own schedule start runs from now on; see ``runs``."""
        await self._do(lambda: self._enter(dag, paused=False))

    async def advance(self, duration: Duration) -> None:
        """Let virtual time pass, and process everything that is due until its end, inclusive.

        Args:
            duration: A timedelta, seconds, or ``"90s" "5m" "14h" "2d"``.
        """
        seconds = microseconds(duration, "duration") / 1e6
        await self._do(lambda: self._world.pass_time(seconds))

    async def emit(self, name: str, *, key: str | None = None, data: Any = None) -> None:
        """Emit a named event, like an external client."""

        async def tell() -> None:
            request = f"sim-{next(self._keys)}"
            await self._world.ask(
                lambda node: node.api.emit(name, key=key, data=data, request=request)
            )
            await self._world.stillness()

        await self._do(tell)

    async def answer(self, run: SimRun, answer: Any = True, *, by: str = "home") -> None:
        """Answer the oldest open decision of a run, like a person.

        Args:
            answer: ``True`` or ``False``; or the form, as an instance or as a dict of JSON types.
            by: The name of the user. Only ``home``, the default, is an assignee of each decision.

        Raises:
            LookupError: If no task of the run waits for a decision.
            BadAnswer: If the answer does not fit the form.
            NotAssigned: If that user may not answer.
        """
        actor = Actor(name=by, role=Role.OPERATOR)
        plain = msgspec.to_builtins(answer)

        async def decide() -> None:
            found = await self._world.ask(
                lambda node: node.api.decisions.newest(run_id=run.run_id, is_open=True)
            )
            if not found:
                raise LookupError(f"no task of run {run.run_id} waits for a decision")
            number = found[-1].decision_id
            await self._world.ask(lambda node: node.api.by(actor).decisions.answer(number, plain))
            await self._world.stillness()

        await self._do(decide)

    async def cancel(self, run: SimRun) -> None:
        """Cancel a run."""

        async def end() -> None:
            await self._world.ask(lambda node: node.api.cancel(run.run_id))
            await self._world.stillness()

        await self._do(end)

    async def clear(
        self,
        run: SimRun,
        *tasks: str,
        map_index: int = -1,
        downstream: bool = False,
        failed: bool = False,
    ) -> int:
        """Clear tasks of a run so that they run again. Return how many.

        Args:
            tasks: The ids of the tasks; all tasks by default.
            map_index: If given, clear only this child of a mapped task.
            downstream: Whether to clear all tasks downstream of ``tasks``, too.
            failed: Whether to clear only tasks that failed, were cancelled, or could not run
                because of a failure.

        Raises:
            UnknownTask: If the run has no such task, or the task no such child.
            RequestError: If the run is still being ended or cleared.
        """

        async def begin() -> int:
            answer = await self._world.ask(
                lambda node: node.api.clear(
                    run.run_id, tasks, map_index=map_index, downstream=downstream, failed=failed
                )
            )
            await self._world.stillness()
            return int(answer["cleared"])

        return await self._do(begin)

    async def backfill(
        self,
        dag: DAG,
        /,
        first: date | str,
        last: date | str,
        *,
        reprocess: Reprocess = "none",
        max_active: int = 0,
        reverse: bool = False,
        **params: Any,
    ) -> SimBackfill:
        """Create runs for the fire times of a range, as ``aioflow dags backfill`` does.

        Process everything that is due at the current virtual time. ``finished`` of the returned
        backfill lets time pass until it has ended.

        Args:
            first: Start of the range: a day or a datetime, or either as ISO 8601 text.
            last: End of the range, like ``first``; if it is a day, the whole day is included.
            reprocess: Which fire times that have a run get another: ``none``, those whose run
                ``failed``, or ``all``.
            max_active: Maximum number of the backfill's runs active at once; 0 for the DAG's limit.
            reverse: Whether to start with the newest fire time.
            params: The parameters of all runs of the backfill.

        Raises:
            RequestError: If the range has no fire time, or another backfill of the DAG is running.
        """
        key = f"sim-{next(self._keys)}"

        async def begin() -> int:
            if dag.dag_id not in self._dags:
                await self._enter(dag, paused=True)
            view, _ = await self._world.ask(
                lambda node: node.api.backfills.start(
                    dag.dag_id,
                    first=_iso(first),
                    last=_iso(last),
                    reprocess=reprocess,
                    max_active=max_active,
                    reverse=reverse,
                    conf=params or None,
                    key=key,
                )
            )
            await self._world.stillness()
            return view.backfill_id

        return SimBackfill(self, dag, await self._do(begin))

    async def crash(self) -> None:
        """Kill the node between two commits, and restart it on its database.

        Everything that the node was running is lost: coroutines are cancelled, sleeping bodies end.
        """
        await self._do(self._world.crash)

    @classmethod
    async def crash_everywhere(
        cls,
        dag: DAG,
        prepare: Callable[[Sim], object] | None = None,
        /,
        **params: Any,
    ) -> int:
        """Run a DAG without a crash, then with a crash at each commit; compare the outcomes.

        For every commit two new nodes are used: one that crashes just before the commit, and one
        that crashes just after it.

        Args:
            prepare: Called with each new simulator before its run starts, to replace tasks.

        Returns:
            The number of commits of the run without a crash.

        Raises:
            AssertionError: If a run or a task ended in another state, or with another result.
            RunStuck: If a run did not end.
        """

        async def play(crash: Callable[[int, bool], bool]) -> Ending:
            with cls() as sim:
                if prepare is not None:
                    prepare(sim)
                sim._world.crash_where(crash)
                run = await sim.start(dag, **params)
                return ending_of(await run.finished())

        return await play_crashing_everywhere(play)

    def replace(self, task: Replaceable, fn: Callable[..., Any]) -> None:
        """Run a function instead of a task's own, from the next start of the task on.

        The function is called with those of the task's arguments that it accepts, by name. If no
        DAG of the test has the task id, a ``LookupError`` is raised when the simulation ends.

        Args:
            task: The decorated function, which is replaced in all DAGs; or a reference; or a task
                id.
            fn: A ``def`` or a lambda. For an ``async def`` task an ``async def`` is allowed, too.

        Raises:
            TypeError: If ``fn`` is ``async`` but the task is not.
        """
        self._understudies.replace(task, fn)

    # ── state ───────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """The time of the virtual clock, in UTC."""
        return to_datetime(self._world.clock.now())

    @property
    def notifications(self) -> list[Notification]:
        """Notifications of webhook and e-mail notifiers, oldest first. None of them was sent."""
        return list(self._world.notifications)

    def runs(self, dag: DAG, /) -> list[SimRun]:
        """Return all runs of a DAG, oldest first, however they were started."""
        found = self.look(lambda api: api.list_runs(dag_id=dag.dag_id, limit=10_000))
        return [SimRun(self, dag, run.run_id) for run in reversed(found)]

    # ── for runs ────────────────────────────────────────────────────────────────────────

    @property
    def results(self) -> Path:
        """See ``runs.Stage``."""
        return self._world.home / "results"

    def look(self, question: Callable[[Api], Awaitable[T]]) -> T:
        """See ``runs.Stage``."""
        return self._world.run(lambda: self._world.ask(lambda node: question(node.api)))

    async def until_ended(self, run_id: str, within: Duration) -> None:
        """See ``runs.Stage``."""

        async def is_live(api: Api) -> bool:
            return (await api.run(run_id)).state.is_live

        if not await self.until_over(is_live, within):
            raise RunStuck(await self._do(lambda: self._why(run_id)))

    async def until_over(self, is_live: Callable[[Api], Awaitable[bool]], within: Duration) -> bool:
        """Let virtual time pass until ``is_live`` returns false; return whether that was in time.

        Args:
            is_live: Called first, and again after each commit that changes the state of a run.
        """
        seconds = microseconds(within, "within") / 1e6

        async def ask() -> bool:
            return await self._world.ask(lambda node: is_live(node.api))

        async def wait() -> bool:
            with anyio.move_on_after(seconds):
                while await ask():
                    await self._world.run_changed()
            await self._world.stillness()
            return not await ask()

        try:
            return await self._do(wait)
        except Stalled:
            return False

    async def _why(self, run_id: str) -> str:
        chain = await self._world.ask(lambda node: node.api.why(run_id))
        lines = [f"run {run_id} of {chain.dag_id} is still {chain.state} at {self.now}"]
        for cause in chain.causes:
            waits = cause.waiting_on
            what = "" if waits is None else f", waits for {waits.kind}: {waits.detail}"
            of = "" if cause.run_id == run_id else f" of run {cause.run_id}"
            lines.append(
                f"{'  ' * cause.depth}{cause.task_id or 'the run'}{of} {cause.state}{what}"
            )
        return "\n".join(lines)

    # ── DAGs ────────────────────────────────────────────────────────────────────────────

    async def _enter(self, dag: DAG, *, paused: bool) -> None:
        """Register a DAG, and the other DAGs of its file, because its tasks may start them."""
        await self._put(dag, paused=paused)
        for other in registered(dag.file):
            if other.dag_id not in self._dags:
                try:
                    await self._put(other, paused=True)
                except DagError as exc:  # perhaps a DAG for another test, which expects this error
                    _logger.warning("%s is not known to this simulation: %s", other.dag_id, exc)

    async def _put(self, dag: DAG, *, paused: bool) -> None:
        if self._dags.get(dag.dag_id, dag) is not dag:
            raise ValueError(f"there is another DAG of the name {dag.dag_id!r} in this Sim")
        file = f"{dag.dag_id}.py"
        spec, failures = describe(dag, file=file)
        if spec is None:
            raise DagError("; ".join(failure.message for failure in failures))
        self._dags[dag.dag_id] = dag
        spec = msgspec.structs.replace(spec, if_paused="stay")  # only its schedule is paused
        spec = msgspec.structs.replace(spec, tasks=tuple(map(_made_local, spec.tasks)))
        version = dag.dag_id
        if spec.trigger is not None and paused:
            spec = msgspec.structs.replace(spec, trigger=None)
        elif spec.trigger is not None:
            version = f"{dag.dag_id}, by events"
        self._code_cache.put(version, dag)
        self._closing.enter_context(virtual_time_in(_modules(dag)))
        self._understudies.enter(dag)
        parsed = FileParsed(file=file, version=version, dags=(spec,), sources={})

        async def tell(node: Node) -> None:
            node.engine.report([parsed])
            await node.api.set_paused(dag.dag_id, paused=paused)

        await self._world.ask(tell)

    async def _do(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._world.do(make)


def _made_local(task: TaskSpec) -> TaskSpec:
    """Return a task that runs in the simulated node, whatever executor its author named."""
    return msgspec.structs.replace(task, executor=LOCAL, resources=(), executor_options=b"")


def _iso(moment: date | str) -> str:
    return moment if isinstance(moment, str) else moment.isoformat()


def _modules(dag: DAG) -> list[ModuleType]:
    """Return the modules that contain the code of a DAG's tasks."""
    names = {getattr(node.fn or node.operator, "__module__", "") for node in dag.nodes}
    return [sys.modules[name] for name in names if name in sys.modules]
