"""Virtual time: an event loop, the wall clock of user code, and reports of a simulation that hangs.

When nothing is ready, the loop's time jumps to the next timer. Threads need real time, so no
virtual time passes while a thread works for this loop. Before virtual time passes, sockets get a
moment of real time to become ready.

The wall clock is that of ``time_machine``, which replaces the C functions behind ``datetime`` and
``time``, so code sees the same time under whatever name it has imported them. ``time_machine`` does
not replace ``time.sleep``; this module does. A ``sleep`` that was imported by name sleeps in real
time, except in modules passed to ``virtual_time_in``.

A test may be stuck in a line of user code that never ends, or be slow because descriptors get a
moment of real time at each step. Both look alike from outside: nothing happens. ``Standstill``
reports which of them it is.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import closing, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TextIO, TypeAlias, TypeVar
from weakref import WeakSet

import anyio
from anyio._backends._asyncio import AsyncIOBackend

from aioflow.model.timestamps import Timestamp

try:
    import time_machine
except ModuleNotFoundError as exc:
    _HINT = "pip install 'aioflow-engine[testing]'"
    raise ModuleNotFoundError(f"simulations need time-machine: {_HINT}", name=exc.name) from exc

__all__ = (
    "HostScope",
    "Stalled",
    "Standstill",
    "VirtualClock",
    "VirtualLoop",
    "host_scope",
    "nap_here",
    "napping",
    "threads_are_counted",
    "virtual_loop",
    "wall_clock",
)

SOCKET_SECONDS = 0.05
"""Real seconds that a loop waits for its sockets before it lets virtual time pass."""

THREAD_SECONDS = 5.0
"""Real seconds that a loop waits for busy threads.

Then it lets virtual time pass, in case a thread waits for virtual time to pass.
"""

RESOLUTION_SECONDS = 1e-6

_Events: TypeAlias = list[tuple[selectors.SelectorKey, int]]


class Stalled(Exception):
    """Nothing is ready and no timer is set, so nothing will ever happen again."""


class HostScope:
    """The tasks and streams of one simulated host. A real host would have its own event loop.

    Attributes:
        make_task: The task factory of the host.
        tasks: The tasks that the host has created.
        streams: The host's standard output and error; ``None`` for those of the process.
    """

    def __init__(self) -> None:
        self.make_task: Callable[..., Any] | None = None
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.streams: tuple[TextIO, TextIO] | None = None


host_scope: ContextVar[HostScope | None] = ContextVar("host_scope", default=None)
"""The host whose code is running; ``None`` while the daemon's code runs."""


class _Selector(selectors.DefaultSelector):
    """A selector that waits for real events, and lets virtual time pass if there are none.

    Attributes:
        loop: The loop that uses this selector.
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
        # One descriptor is the loop's own: threads wake the loop through it.
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
        busy_threads: Number of threads that currently work for the loop.
        pauses: Called in order before time passes, to check external sources such as files. Each
            returns whether it has triggered work, which is then done before time passes.
        ident: Id of the thread in which the loop ran last.
        working: Ids of the loop's threads that currently neither sleep nor wait for the loop.
        is_selecting: Whether the loop is waiting in real time for threads or descriptors.
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
        # The default resolution is 1 ns. After a year of virtual time, adding 1 ns to a float does
        # not change it, so a timer for exactly now would never be due.
        self._clock_resolution = RESOLUTION_SECONDS

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual

    def run_forever(self) -> None:
        """See the base class; ``run_until_complete`` calls it."""
        self.ident = threading.get_ident()
        super().run_forever()

    def watched(self) -> list[int]:
        """Return the descriptors that the loop waits for, without its own wake-up descriptor."""
        return [key.fd for key in list(self._waits.get_map().values()) if key.fd not in self._own]

    def skip(self, seconds: float) -> None:
        """Let time pass without running anything, as when user code blocks the loop."""
        self._advance(max(0.0, seconds))

    async def stillness(self) -> None:
        """Wait until nothing more happens at the current virtual time."""
        still = self.create_future()
        self._still.append(still)
        await still

    def nothing_is_ready(self, timeout: float | None) -> _Events:
        """Wake the waiters for stillness; if there are none, let time pass until the next timer.

        Raises:
            Stalled: If there is neither a waiter nor a timer.
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
            self._advance(timeout)
        return []

    def _advance(self, seconds: float) -> None:
        self._virtual += seconds
        _show_wall_time()

    # ── hosts ───────────────────────────────────────────────────────────────────────────

    def create_task(self, coro: Any, **options: Any) -> Any:
        """Create a task with the task factory of the host whose code is running."""
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
        """Set the task factory of the loop or, if a host calls this, of that host."""
        home = host_scope.get()
        if home is None:
            super().set_task_factory(factory)
        else:
            home.make_task = factory

    # ── threads ─────────────────────────────────────────────────────────────────────────

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread. No virtual time passes while the function works."""
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
        """Mark the current thread, which works for this loop, as waiting for the loop."""
        self.working.discard(threading.get_ident())
        try:
            yield
        finally:
            self.working.add(threading.get_ident())

    def with_naps(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that ``time.sleep`` in it takes virtual time of this loop."""

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
    """Return the running loop, which must be the virtual loop of a simulation."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)  # noqa: S101 - called only in a simulation
    return loop


_thread = threading.local()


@contextmanager
def napping(nap: Callable[[float], None]) -> Iterator[None]:
    """Make ``time.sleep`` call ``nap`` in the current thread."""
    before = getattr(_thread, "nap", None)
    _thread.nap = nap
    try:
        yield
    finally:
        _thread.nap = before


def nap_here() -> Callable[[float], None] | None:
    """Return the sleep function of the current thread if it works for a virtual loop."""
    nap: Callable[[float], None] | None = getattr(_thread, "nap", None)
    if nap is not None:
        return nap
    loop = asyncio._get_running_loop()  # noqa: SLF001 - the public function raises if there is none
    return loop.skip if isinstance(loop, VirtualLoop) else None


_real_run_sync = AsyncIOBackend.run_sync_in_worker_thread
_unpatched_run_sync = vars(AsyncIOBackend)["run_sync_in_worker_thread"]
_counting = 0


async def _run_counted(
    func: Callable[..., Any], args: tuple[Any, ...], *rest: Any, **options: Any
) -> Any:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        return await _real_run_sync(func, args, *rest, **options)
    with loop.thread():
        return await _real_run_sync(loop.with_naps(func), args, *rest, **options)


@contextmanager
def threads_are_counted() -> Iterator[None]:
    """Make virtual loops count the threads that anyio starts for them."""
    global _counting  # noqa: PLW0603 - the replaced function is global, too
    backend: Any = AsyncIOBackend
    _counting += 1
    backend.run_sync_in_worker_thread = staticmethod(_run_counted)
    try:
        yield
    finally:
        _counting -= 1
        if not _counting:
            backend.run_sync_in_worker_thread = _unpatched_run_sync


_SECOND = 1_000_000
_real_sleep = time.sleep
_clocks: list[VirtualClock] = []
"""The active clocks; the last one determines the time."""


class VirtualClock:
    """See ``Clock``. Monotonic time is the time of a loop; wall time advances with it."""

    def __init__(self, loop: VirtualLoop, begins_at: Timestamp) -> None:
        self._loop = loop
        self._begins_at = begins_at

    def now(self) -> Timestamp:
        """See ``Clock``."""
        return self._begins_at + self.monotonic_us()

    def monotonic_us(self) -> int:
        """See ``Clock``."""
        return round(self._loop.time() * _SECOND)

    async def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        await anyio.sleep(seconds)


class _WallClock:
    """The replaced wall clock of the process, in whole microseconds."""

    def __init__(self, moment: Timestamp) -> None:
        # A number has no time zone, so the process keeps its time zone.
        self._travel = time_machine.travel(moment // _SECOND, tick=False)
        self._traveller = self._travel.start()
        self._shown = moment // _SECOND * _SECOND
        self.show(moment)

    def show(self, moment: Timestamp) -> None:
        """Set the clock to ``moment``."""
        self._traveller.shift(timedelta(microseconds=moment - self._shown))
        self._shown = moment

    def restore(self) -> None:
        """Return to real time."""
        self._travel.stop()


_replaced: _WallClock | None = None


def _show_wall_time() -> None:
    if _replaced is not None:
        _replaced.show(_clocks[-1].now())


@contextmanager
def wall_clock(clock: VirtualClock) -> Iterator[None]:
    """Replace the wall clock of this process. The last of several active clocks counts."""
    global _replaced  # noqa: PLW0603 - the wall clock is global, too
    _clocks.append(clock)
    if _replaced is None:
        _replaced = _WallClock(clock.now())
        vars(time)["sleep"] = _sleep
    _show_wall_time()
    try:
        yield
    finally:
        _clocks.remove(clock)
        if _clocks:
            _show_wall_time()
        else:
            vars(time)["sleep"] = _real_sleep
            _replaced.restore()
            _replaced = None


@contextmanager
def virtual_time_in(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Replace ``sleep`` also in modules that have imported it by name."""
    changed = []
    try:
        for module in modules:
            for name, value in list(vars(module).items()):
                if value is _real_sleep:
                    changed.append((module, name))
                    setattr(module, name, _sleep)
        yield
    finally:
        for module, name in changed:
            setattr(module, name, _real_sleep)


def _sleep(seconds: float) -> None:
    """Sleep in virtual time in threads that work for a virtual loop, else in real time."""
    nap = nap_here() or _real_sleep
    nap(seconds)


REPORT_AFTER_SECONDS = 10.0
"""Real seconds before the first report of a wait. Each further interval is twice as long."""

_PACKAGE_FOLDER = str(Path(__file__).parent.parent) + os.sep
_NOT_OF_USERS = (
    _PACKAGE_FOLDER,
    sysconfig.get_path("stdlib") + os.sep,
    sysconfig.get_path("purelib"),
)

T = TypeVar("T")


class Standstill:
    """Waits for results of a simulation's loop, and reports waits that take long by the real clock.

    Args:
        now: Returns the time of the virtual clock.
        tell: Called with each report, in the waiting thread.
    """

    def __init__(
        self, loop: VirtualLoop, now: Callable[[], datetime], tell: Callable[[str], object]
    ) -> None:
        self._loop = loop
        self._now = now
        self._tell = tell

    def result(self, future: Future[T]) -> T:
        """Wait for a result of the loop, blocking this thread."""
        interval, before = REPORT_AFTER_SECONDS, self._progress()
        while not wait({future}, timeout=interval).done:
            before, interval = self._report(before, interval), 2 * interval
        return future.result()

    async def awaited(self, future: Future[T]) -> T:
        """Wait for a result of the loop, while the loop of the test continues."""
        waited = asyncio.wrap_future(future)
        interval, before = REPORT_AFTER_SECONDS, self._progress()
        try:
            while not (await asyncio.wait({waited}, timeout=interval))[0]:
                before, interval = self._report(before, interval), 2 * interval
        except asyncio.CancelledError:
            waited.cancel()
            raise
        return waited.result()

    def _progress(self) -> tuple[float, float]:
        return self._loop.time(), self._loop.vain_seconds

    def _report(self, before: tuple[float, float], seconds: float) -> tuple[float, float]:
        """Report what the simulation waited for in the last ``seconds``. Return its progress."""
        present = moved_to, vain_seconds = self._progress()
        vain = vain_seconds - before[1]
        if moved_to == before[0]:
            self._say(f"has been blocked for {seconds:g} s of real time and waits for")
        elif vain >= seconds / 2:
            self._say(f"has spent {vain:.0f} of the last {seconds:g} s of real time waiting for")
        return present

    def _say(self, what: str) -> None:
        causes = list(self._causes())
        if causes:  # otherwise the machine is slow, and the simulation continues by itself
            moment = self._now().astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
            self._tell("\n  - ".join((f"at {moment} the simulation {what}:", *causes)))

    def _causes(self) -> Iterator[str]:
        frames = sys._current_frames()  # noqa: SLF001 - there is no public way
        busy = [ident for ident in list(self._loop.working) if ident in frames]
        for ident in busy:
            yield f"a thread {_frame_text(frames[ident])}"
        if self._loop.is_selecting:
            for descriptor in self._loop.watched():
                yield f"word from {_descriptor_text(descriptor)}, at each step of time"
        elif not busy and self._loop.ident in frames:
            yield f"the event loop {_frame_text(frames[self._loop.ident])}"


def _frame_text(frame: FrameType) -> str:
    """Describe where a thread is: the innermost line of user code, else its current line."""
    innermost: FrameType | None = frame
    while innermost is not None:
        if not innermost.f_code.co_filename.startswith(_NOT_OF_USERS):
            frame = innermost
            break
        innermost = innermost.f_back
    code = frame.f_code
    return f"in {code.co_name}() at {code.co_filename}:{frame.f_lineno}"


def _descriptor_text(descriptor: int) -> str:
    """Describe what a descriptor of this process refers to."""
    try:
        with closing(socket.socket(fileno=os.dup(descriptor))) as opened:
            return f"the socket to {opened.getpeername()}"
    except OSError:
        pass
    try:
        return f"the descriptor {descriptor} ({Path(f'/proc/self/fd/{descriptor}').readlink()})"
    except OSError:
        return f"the descriptor {descriptor}"
