"""An event loop on virtual time: when nothing is ready, time jumps to the next timer.

Threads need real time, so no virtual time passes while one works for this loop. Before time passes,
sockets get a moment of real time to become ready.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, TypeAlias
from weakref import WeakSet

from anyio._backends._asyncio import AsyncIOBackend

__all__ = (
    "HostScope",
    "Stalled",
    "VirtualLoop",
    "host_scope",
    "nap_here",
    "napping",
    "threads_are_counted",
    "virtual_loop",
)

SOCKET_SECONDS = 0.05
"""Real seconds that a loop with sockets waits for them before it lets time pass."""

THREAD_SECONDS = 5.0
"""Real seconds that a thread may be busy. Then time passes, in case the thread waits for that."""

RESOLUTION_SECONDS = 1e-6

_Events: TypeAlias = list[tuple[selectors.SelectorKey, int]]


class Stalled(Exception):
    """Nothing is ready and no timer is set, so nothing will ever happen again."""


class HostScope:
    """The tasks and streams of one simulated host, which really would have its own event loop.

    Attributes:
        make_task: Its task factory.
        tasks: The tasks it has created.
        streams: Its standard output and error; ``None`` for those of the process.
    """

    def __init__(self) -> None:
        self.make_task: Callable[..., Any] | None = None
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.streams: tuple[TextIO, TextIO] | None = None


host_scope: ContextVar[HostScope | None] = ContextVar("host_scope", default=None)
"""The host whose code runs; ``None`` for the daemon's."""


class _Selector(selectors.DefaultSelector):
    """Waits for real events, and lets virtual time pass.

    Attributes:
        loop: The loop it belongs to.
    """

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> _Events:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        return self._really() or self.loop.nothing_is_ready(timeout)

    def _really(self) -> _Events:
        """Wait in real time, if there are busy threads or sockets to wait for."""
        if self.loop.busy_threads:
            return self._wait(THREAD_SECONDS)
        # One descriptor is the loop's own, by which threads wake it.
        return self._wait(SOCKET_SECONDS) if len(self.get_map()) > 1 else []

    def _wait(self, seconds: float) -> _Events:
        self.loop.is_selecting = True
        found = super().select(seconds)
        self.loop.is_selecting = False
        if not found:
            self.loop.vain_seconds += seconds
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time; see the module.

    Attributes:
        busy_threads: Number of threads that work for it now.
        pauses: Called in order before time passes, to check external sources such as files. Each
            returns whether it has triggered work, which is then done before time passes.
        ident: Id of the thread it ran in last.
        working: Ids of the threads that neither sleep nor wait for the loop.
        is_selecting: Whether it waits for threads or descriptors now, in real time.
        vain_seconds: Real seconds spent in such waits that ended without an event.
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        self.pauses: dict[Callable[[], bool], None] = {}
        self._still: list[asyncio.Future[None]] = []
        self.busy_threads = 0
        self.ident = 0
        self.working: set[int] = set()
        self.is_selecting = False
        self.vain_seconds = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._waits = selector
        self._own = frozenset(key.fd for key in selector.get_map().values())
        # A nanosecond is below a float's precision after a year, so timers would never be due.
        self._clock_resolution = RESOLUTION_SECONDS

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual

    def run_forever(self) -> None:
        """See the base class; ``run_until_complete`` calls it."""
        self.ident = threading.get_ident()
        super().run_forever()

    def watched(self) -> list[int]:
        """Return the descriptors it waits for, except its own, by which threads wake it."""
        return [key.fd for key in list(self._waits.get_map().values()) if key.fd not in self._own]

    def skip(self, seconds: float) -> None:
        """Let time pass without running anything, as when user code blocks the loop."""
        self._virtual += max(0.0, seconds)

    async def stillness(self) -> None:
        """Return when nothing more happens at the present virtual time."""
        still = self.create_future()
        self._still.append(still)
        await still

    def nothing_is_ready(self, timeout: float | None) -> _Events:
        """Wake those that wait for stillness, or else let time pass until the next timer.

        Raises:
            Stalled: If there is neither.
        """
        if any(pause() for pause in list(self.pauses)):
            return []
        if self._still:
            waiting, self._still = self._still, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        elif timeout is None:
            raise Stalled
        else:
            self._virtual += timeout
        return []

    # ── hosts ───────────────────────────────────────────────────────────────────────────

    def create_task(self, coro: Any, **options: Any) -> Any:
        """Create a task with the task factory of the host whose code this is."""
        context = options.get("context")
        home = host_scope.get() if context is None else context.get(host_scope)
        if home is None or home.make_task is None:
            task = super().create_task(coro, **options)
        else:
            name = options.pop("name", None)
            task = home.make_task(self, coro, **options)
            if name is not None:
                task.set_name(name)
        if home is not None:
            home.tasks.add(task)
        return task

    def set_task_factory(self, factory: Any) -> None:
        """Set the task factory; called from a host, that of this host."""
        home = host_scope.get()
        if home is None:
            super().set_task_factory(factory)
        else:
            home.make_task = factory

    # ── threads ─────────────────────────────────────────────────────────────────────────

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread; no virtual time passes meanwhile."""
        self.busy_threads += 1
        future = super().run_in_executor(executor, self.with_naps(func), *args)
        future.add_done_callback(self._thread_is_back)
        return future

    def _thread_is_back(self, _: object) -> None:
        self.busy_threads -= 1

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Count one more thread that works for this loop."""
        self.busy_threads += 1
        try:
            yield
        finally:
            self.busy_threads -= 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Mark the current thread as working for this loop."""
        self.working.add(threading.get_ident())
        try:
            yield
        finally:
            self.working.discard(threading.get_ident())

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Mark the current thread, which works for this loop, as waiting for it."""
        self.working.discard(threading.get_ident())
        try:
            yield
        finally:
            self.working.add(threading.get_ident())

    def with_naps(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its thread sleeps on the virtual time of this loop."""

        def run(*arguments: Any) -> Any:
            with self.at_work(), napping(self._nap):
                return function(*arguments)

        return run

    def _nap(self, seconds: float) -> None:
        awake = threading.Event()
        with self.at_rest():
            self.call_soon_threadsafe(self._lay_down, seconds, awake)
            awake.wait()

    def _lay_down(self, seconds: float, awake: threading.Event) -> None:
        self.busy_threads -= 1
        self.call_later(max(0.0, seconds), self._get_up, awake)

    def _get_up(self, awake: threading.Event) -> None:
        self.busy_threads += 1
        awake.set()


def virtual_loop() -> VirtualLoop:
    """Return the running loop, which must be that of a simulation."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)  # noqa: S101 - what asks lives in a simulation
    return loop


_thread = threading.local()


@contextmanager
def napping(nap: Callable[[float], None]) -> Iterator[None]:
    """Have ``time.sleep`` call ``nap`` in the current thread."""
    before = getattr(_thread, "nap", None)
    _thread.nap = nap
    try:
        yield
    finally:
        _thread.nap = before


def nap_here() -> Callable[[float], None] | None:
    """Return the sleep function for the current thread, if it works for a virtual loop."""
    nap: Callable[[float], None] | None = getattr(_thread, "nap", None)
    if nap is not None:
        return nap
    loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises where there is none
    return loop.skip if isinstance(loop, VirtualLoop) else None


_original = AsyncIOBackend.run_sync_in_worker_thread
_as_it_was = vars(AsyncIOBackend)["run_sync_in_worker_thread"]
_counting = 0


async def _run_counted(
    func: Callable[..., Any], args: tuple[Any, ...], *rest: Any, **options: Any
) -> Any:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        return await _original(func, args, *rest, **options)
    with loop.thread():
        return await _original(loop.with_naps(func), args, *rest, **options)


@contextmanager
def threads_are_counted() -> Iterator[None]:
    """Have virtual loops count the threads that anyio starts for them."""
    global _counting  # noqa: PLW0603 - what it counts is of the whole process, too
    backend: Any = AsyncIOBackend
    _counting += 1
    backend.run_sync_in_worker_thread = staticmethod(_run_counted)
    try:
        yield
    finally:
        _counting -= 1
        if not _counting:
            backend.run_sync_in_worker_thread = _as_it_was
