"""An event loop on virtual time: when nothing is ready, the time is that of the next timer.

Threads really take their time, so while one works for this loop no time passes. Sockets are
given a moment to say something before it does.
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
    "Household",
    "Stalled",
    "VirtualLoop",
    "household",
    "nap_here",
    "napping",
    "threads_are_counted",
    "virtual_loop",
)

SOCKET_SECONDS = 0.05
"""Real seconds that a loop with sockets waits for them before it lets time pass."""

THREAD_SECONDS = 5.0
"""Real seconds that a thread may be busy before time passes anyhow: it may wait for just that."""

RESOLUTION_SECONDS = 1e-6

_Events: TypeAlias = list[tuple[selectors.SelectorKey, int]]


class Stalled(Exception):
    """Nothing is ready and no timer is armed: nothing will ever happen again."""


class Household:
    """What lives in one host, as far as the loop goes: in truth each has a loop of its own.

    Attributes:
        make_task: How it makes its tasks.
        tasks: Those it has made.
        streams: Its standard output and error; ``None`` for those of the process.
    """

    def __init__(self) -> None:
        self.make_task: Callable[..., Any] | None = None
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.streams: tuple[TextIO, TextIO] | None = None


household: ContextVar[Household | None] = ContextVar("household", default=None)
"""In which host code runs; in none for the daemon."""


class _Selector(selectors.DefaultSelector):
    """Waits for real things and lets virtual time pass.

    Attributes:
        loop: Whose it is.
    """

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> _Events:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        return self._really() or self.loop.nothing_is_ready(timeout)

    def _really(self) -> _Events:
        """Wait as long as there is something real to wait for."""
        if self.loop.busy_threads:
            return self._wait(THREAD_SECONDS)
        # One is the loop's own, by which threads wake it.
        return self._wait(SOCKET_SECONDS) if len(self.get_map()) > 1 else []

    def _wait(self, seconds: float) -> _Events:
        self.loop.is_selecting = True
        found = super().select(seconds)
        self.loop.is_selecting = False
        if not found:
            self.loop.vain_seconds += seconds
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module.

    Attributes:
        busy_threads: How many work for it right now.
        pauses: Called in order before time passes, to look at what is outside of it, such as
            files. Each returns whether it has made anything happen, for which time waits.
        ident: That of the thread that it ran in last.
        working: Those of the threads that neither sleep nor wait for the loop, by their idents.
        is_selecting: It waits for threads or descriptors right now, in real time.
        vain_seconds: Real seconds in which it has done so and nothing came.
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
        # A nanosecond is nothing to a float that has counted a year: its timers never came.
        self._clock_resolution = RESOLUTION_SECONDS

    def time(self) -> float:
        """Return virtual seconds since it was made."""
        return self._virtual

    def run_forever(self) -> None:
        """See the base; ``run_until_complete`` calls it."""
        self.ident = threading.get_ident()
        super().run_forever()

    def watched(self) -> list[int]:
        """Return the descriptors that it waits for, without its own, by which threads wake it."""
        return [key.fd for key in list(self._waits.get_map().values()) if key.fd not in self._own]

    def skip(self, seconds: float) -> None:
        """Let time pass without doing anything in it, as when user code blocks the loop."""
        self._virtual += max(0.0, seconds)

    async def stillness(self) -> None:
        """Return when nothing more happens at this instant."""
        still = self.create_future()
        self._still.append(still)
        await still

    def nothing_is_ready(self, timeout: float | None) -> _Events:
        """Let time pass until the next timer, or tell those who wait for stillness.

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
        """Make a task as the host does whose code this is."""
        context = options.get("context")
        home = household.get() if context is None else context.get(household)
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
        """Say how tasks are made; in a host, how those of this host are."""
        home = household.get()
        if home is None:
            super().set_task_factory(factory)
        else:
            home.make_task = factory

    # ── threads ─────────────────────────────────────────────────────────────────────────

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread; no time passes meanwhile."""
        self.busy_threads += 1
        future = super().run_in_executor(executor, self.with_naps(func), *args)
        future.add_done_callback(self._thread_is_back)
        return future

    def _thread_is_back(self, _: object) -> None:
        self.busy_threads -= 1

    @contextmanager
    def thread(self) -> Iterator[None]:
        """One more thread works for this loop."""
        self.busy_threads += 1
        try:
            yield
        finally:
            self.busy_threads -= 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The present thread works for this loop."""
        self.working.add(threading.get_ident())
        try:
            yield
        finally:
            self.working.discard(threading.get_ident())

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """The present thread, which works for it, waits for this loop."""
        self.working.discard(threading.get_ident())
        try:
            yield
        finally:
            self.working.add(threading.get_ident())

    def with_naps(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return it so that its thread sleeps by the time of this loop."""

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
    """Return the running loop, which is that of a simulation."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)  # noqa: S101 - what asks lives in a simulation
    return loop


_thread = threading.local()


@contextmanager
def napping(nap: Callable[[float], None]) -> Iterator[None]:
    """Have ``time.sleep`` call this in the present thread."""
    before = getattr(_thread, "nap", None)
    _thread.nap = nap
    try:
        yield
    finally:
        _thread.nap = before


def nap_here() -> Callable[[float], None] | None:
    """Return what sleeps in the present thread, where it works for a virtual loop."""
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
    """Have virtual loops know of the threads that anyio starts for them."""
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
