"""The interpreters of the settings, and the check whether each can run children.

A child in another interpreter imports the aioflow of that environment. aioflow must be installed
there, and must exchange the same messages as the daemon. To report that, the interpreter runs a
program, see ``worker.identity``. It runs when an interpreter is first needed, when the files of the
interpreter change, when its children die before they answer, and at intervals while it is unusable.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import InterpreterUnusable, SettingsError
from aioflow.filesystem import find_writable, how_to_mend
from aioflow.processes import Children, Launch, NoHeadroom
from aioflow.settings import FILE_NAME, Settings

__all__ = ("LOOK_SECONDS", "RETRY_SECONDS", "Interpreters", "Listener", "PythonPaths")

LOOK_SECONDS = 5.0
"""Interval between two checks of the files of interpreters, a few ``stat`` calls each."""

RETRY_SECONDS = 30.0
"""Interval between two attempts to use an unusable interpreter whose files have not changed."""

PROBE_SECONDS = 30.0
SILENT_DEATHS_LIMIT = 3
"""Number of consecutive deaths before an answer that make an interpreter unusable.

The interpreter is then unusable for ``RETRY_SECONDS``, whatever it reports itself.
"""

OLDEST = (3, 11)

_PROBE = """
import sys
sys.dont_write_bytecode = True
sys.path[:] = [place for place in sys.path if place]
import json
base = getattr(sys, "base_prefix", sys.prefix)
said = {"python": list(sys.version_info[:3]), "root": sys.prefix if sys.prefix != base else ""}
if sys.version_info >= (3, 11):
    try:
        from aioflow.worker.identity import identity
        said.update(identity())
    except BaseException as exc:
        said["error"] = "%s: %s" % (type(exc).__name__, exc)
sys.stdout.write("\\n%s%s\\n" % (sys.argv[1], json.dumps(said)))
sys.stdout.flush()
"""
"""A program that any Python can run. Other output of the interpreter is ignored."""

_LAST_WORDS = 300
_UNKNOWN = "not in the settings"

_logger = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[str], None]
"""Called with the name of an interpreter that has become usable or unusable, or was replaced."""

_Stamps: TypeAlias = tuple[tuple[str, int, int], ...]


class _Identity(msgspec.Struct, frozen=True):
    """What an interpreter reports about itself. Without ``error``, it can run a child."""

    python: tuple[int, int, int]
    root: str = ""
    release: str = ""
    distribution: str = ""
    protocol: str = ""
    error: str = ""


class _State:
    """The state of one interpreter, as of its last check.

    Attributes:
        generation: Increases with each change. A file parsed in another generation is parsed again.
        launch: How to start a child; ``None`` if it is unusable or being checked.
        problem: Why it is unusable.
        outcome: The problem found by the last check, and the files that the check was based on.
        seen: The files when they were last looked at.
        due_us: When an unusable interpreter is checked again.
        decided: Set once a check has ended, until the next one begins.
        silent_deaths: Number of children in a row that died before they answered.
        last_words: How the last of these children died.
    """

    def __init__(self, name: str, path: str, generation: int) -> None:
        self.name = name
        self.path = path
        self.generation = generation
        self.launch: Launch | None = None
        self.problem = ""
        self.outcome: tuple[str, _Stamps] | None = None
        self.seen: _Stamps = ()
        self.due_us = 0
        self.decided = anyio.Event()
        self.is_checking = False
        self.silent_deaths = 0
        self.last_words = ""

    def error(self) -> InterpreterUnusable:
        """Return the error that states why the interpreter is unusable."""
        return InterpreterUnusable(self.name, self.path or _UNKNOWN, self.problem)


class Interpreters:
    """The interpreters of the settings, by name.

    Args:
        paths: Path of each interpreter.
        reread: Returns the paths if the settings have changed, and ``None`` otherwise. May block.
    """

    def __init__(
        self,
        children: Children,
        clock: Clock,
        paths: Mapping[str, str] | None = None,
        *,
        reread: Callable[[], Mapping[str, str] | None] = lambda: None,
    ) -> None:
        self._children = children
        self._clock = clock
        self._reread = reread
        self._paths = dict(paths or {})
        self._states: dict[str, _State] = {}
        self._listeners: list[Listener] = []
        self._group: TaskGroup | None = None
        self._threads = anyio.CapacityLimiter(1)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` for each change. Listeners are called in the order of registration."""
        self._listeners.append(listener)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Check the interpreters that are needed, until cancelled."""
        async with anyio.create_task_group() as self._group:
            for state in self._states.values():
                self._check(state)
            task_status.started()
            while True:
                await self._clock.sleep(LOOK_SECONDS)
                await self._look()

    # ── queries ─────────────────────────────────────────────────────────────────────────

    @property
    def names(self) -> list[str]:
        """The names that a DAG file may choose."""
        return sorted(self._paths)

    def generation(self, name: str) -> int:
        """Return the current generation of an interpreter; 0 for the daemon's own."""
        return self._state(name).generation if name else 0

    def complaint(self, name: str) -> str:
        """Return why an interpreter is unusable; empty if it is usable or not checked yet."""
        state = self._state(name)
        return str(state.error()) if state.problem else ""

    def launch(self, name: str) -> Launch | None:
        """Return how to start a child now; ``None`` if the interpreter is not known to be usable.

        The first call for a name starts the check of that interpreter.
        """
        return self._state(name).launch

    async def find(self, name: str) -> Launch:
        """Return how to start a child, once the interpreter has been checked.

        Raises:
            InterpreterUnusable: If no child can be started now.
        """
        state = self._state(name)
        while not state.decided.is_set():
            await state.decided.wait()
            state = self._state(name)
        if state.launch is None:
            raise state.error()
        return state.launch

    async def wait_until_usable(self, name: str) -> Launch:
        """Return how to start a child, as soon as the interpreter is usable."""
        while (launch := self._state(name).launch) is None:
            changed = anyio.Event()

            def notice(which: str, changed: anyio.Event = changed) -> None:
                if which == name:
                    changed.set()

            self._listeners.append(notice)
            try:
                await changed.wait()
            finally:
                self._listeners.remove(notice)
        return launch

    # ── experience with children ────────────────────────────────────────────────────────

    def answered(self, launch: Launch) -> None:
        """Record that a child has answered, which confirms what its interpreter reported."""
        self._state(launch.interpreter).silent_deaths = 0

    def died_silently(self, launch: Launch, last_words: str) -> None:
        """Record that a child died before it answered, and check the interpreter again.

        Args:
            last_words: How the child died.
        """
        state = self._state(launch.interpreter)
        if state.generation != launch.generation:
            return
        state.silent_deaths += 1
        state.last_words = last_words
        state.launch = None
        self._check(state)

    # ── checks ──────────────────────────────────────────────────────────────────────────

    def _state(self, name: str) -> _State:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = _State(name, self._paths.get(name, ""), 1)
            self._check(state)
        return state

    def _check(self, state: _State) -> None:
        """Start a check, unless a check is running or there is nothing to check."""
        if not state.path:
            self._decide(state, None, self._advice(), ())
        elif self._group is not None and not state.is_checking:
            state.is_checking = True
            state.decided = anyio.Event() if state.decided.is_set() else state.decided
            self._group.start_soon(self._run_check, state)

    def _advice(self) -> str:
        known = f"choose one of {', '.join(self.names)}; or " if self._paths else ""
        return f"{known}add [pythons.NAME] with its path to aioflow.toml in the daemon's home"

    async def _look(self) -> None:
        """Check interpreters whose path or files have changed, and unusable ones that are due."""
        paths = await in_thread(self._reread, limiter=self._threads)
        if paths is not None:
            self._take(paths)
        for state in list(self._states.values()):
            if not state.path or state.is_checking or state.outcome is None:
                continue
            before, state.seen = state.seen, await in_thread(_stamps, state.path)
            is_due = state.launch is None and self._clock.monotonic_us() >= state.due_us
            # While packages are being installed, the files differ from one look to the next.
            is_settled = state.launch is None or state.seen == before
            if is_due or (state.seen != state.outcome[1] and is_settled):
                self._check(state)

    def _take(self, paths: Mapping[str, str]) -> None:
        """Adopt the paths of changed settings."""
        self._paths = dict(paths)
        for name, state in list(self._states.items()):
            path = self._paths.get(name, "")
            if path != state.path:
                _logger.info("python %s is now %s", name, path or "no longer in the settings")
                self._states[name] = _State(name, path, state.generation + 1)
                state.decided.set()  # its waiters find the following state
                self._check(self._states[name])
                self._notify(name)

    async def _run_check(self, state: _State) -> None:
        """Check an interpreter. Use the result unless its path has changed in the meantime."""
        stamps, launch, problem, has_headroom = await in_thread(_stamps, state.path), None, "", True
        try:
            launch, problem = await self._probe(state)
        except* NoHeadroom:
            has_headroom = False  # not the fault of the interpreter
        if not has_headroom:
            await self._children.wait_for_headroom()
        state.is_checking = False
        if self._states.get(state.name) is not state:
            return
        if not has_headroom:
            self._check(state)
            return
        if launch is not None and state.silent_deaths >= SILENT_DEATHS_LIMIT:
            launch, problem = None, f"its processes die when they start: {state.last_words}"
            state.silent_deaths = 0
        self._decide(state, launch, problem, stamps)

    def _decide(self, state: _State, launch: Launch | None, problem: str, stamps: _Stamps) -> None:
        """Store the result of a check."""
        outcome = (problem, stamps)
        is_other = state.outcome is not None and state.outcome != outcome
        is_news = state.outcome != outcome or state.launch is None
        if is_other:
            state.generation += 1
            state.silent_deaths = 0
        if state.outcome is None or state.outcome[0] != problem:
            if problem:
                where = state.path or _UNKNOWN
                _logger.error("python %s (%s) cannot be used: %s", state.name, where, problem)
            else:
                _logger.info("python %s is %s", state.name, state.path)
        if launch is not None:
            launch = msgspec.structs.replace(launch, generation=state.generation)
        state.outcome, state.launch, state.problem = outcome, launch, problem
        state.seen = stamps
        state.due_us = self._clock.monotonic_us() + round(RETRY_SECONDS * 1e6)
        state.decided.set()
        if is_news:
            self._notify(state.name)

    def _notify(self, name: str) -> None:
        for listener in list(self._listeners):
            listener(name)

    async def _probe(self, state: _State) -> tuple[Launch | None, str]:
        """Run an interpreter to identify it. Return how to start children in it, or its problem."""
        if refusal := await in_thread(_refusal, state.path, limiter=self._threads):
            return None, refusal
        path = _resolved(state.path)
        nonce, printed = f"aioflow-{secrets.token_hex(8)} ", bytearray()

        async def collect(data: bytes) -> None:
            printed.extend(data)
            if len(printed) > _PRINTED_BYTES:
                await anyio.sleep_forever()  # the process blocks on its output, and is killed

        launch, ending = Launch(state.name, state.generation, path), None
        unusable: list[BaseException] = []
        try:
            async with self._children.child(
                "probe",
                on_reports=lambda _: None,
                on_output=collect,
                launch=launch,
                arguments=("-c", _PROBE, nonce),
            ) as child:
                with anyio.move_on_after(PROBE_SECONDS):
                    ending = await child.ended()
        except* InterpreterUnusable as exc:
            unusable.extend(exc.exceptions)
        if unusable:
            found = unusable[0]
            return None, found.problem if isinstance(found, InterpreterUnusable) else str(found)
        if ending is None:
            return None, f"it did not answer within {PROBE_SECONDS:g} s"
        said = _said(bytes(printed), nonce)
        if said is None:
            words = " ".join(bytes(printed).decode(errors="replace").split())[-_LAST_WORDS:]
            return None, f"it is no Python, or a damaged one: {words or ending.message}"
        if problem := _misfit(said, path):
            return None, problem
        return msgspec.structs.replace(launch, root=said.root), ""


_PRINTED_BYTES = 64 * 1024


def _said(printed: bytes, nonce: str) -> _Identity | None:
    for line in printed.decode(errors="replace").splitlines():
        if line.startswith(nonce):
            try:
                return msgspec.convert(json.loads(line.removeprefix(nonce)), _Identity)
            except (ValueError, msgspec.ValidationError):
                return None
    return None


def _misfit(said: _Identity, path: str) -> str:
    """Return why an interpreter cannot run children of this daemon; empty if it can."""
    from aioflow.worker.identity import protocol_digest

    install = f"{path} -m pip install aioflow-worker=={_release()}"
    if said.python[:2] < OLDEST:
        number = ".".join(map(str, said.python))
        return f"it is Python {number}, and aioflow needs {OLDEST[0]}.{OLDEST[1]} or newer"
    if said.error:
        return f"it cannot import aioflow ({said.error[:_LAST_WORDS]}); run: {install}"
    if said.protocol != protocol_digest():
        return (
            f"it has {said.distribution} {said.release}, whose messages this daemon of release "
            f"{_release()} does not understand; run: {install}"
        )
    return ""


def _release() -> str:
    try:
        return version("aioflow-engine")
    except PackageNotFoundError:
        return "unknown"


def _refusal(path: str) -> str:
    """Return why a path must not be run, whatever program is there; empty if it may be run."""
    if not Path(path).is_absolute():
        return "the path must be absolute"
    try:
        Path(path).stat()
        found = find_writable((path, os.path.realpath(path)))
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such file"
    except OSError as exc:
        return f"the daemon's user cannot read it ({exc.strerror}); change the owner or the mode"
    return how_to_mend(found) if found else ""


def _resolved(path: str) -> str:
    """Return a path with all links in its folder resolved.

    Running processes then stay in their environment even if a link is changed to another one. The
    last part may be a link, because a virtual environment is identified by the location of its
    interpreter.
    """
    return str(Path(os.path.realpath(Path(path).parent), Path(path).name))


def _stamps(named: str) -> _Stamps:
    """Return the state of the files that determine an interpreter and whether it has aioflow."""
    path = Path(_resolved(named))
    root = path.parent.parent
    files = [path, Path(os.path.realpath(path)), root / "pyvenv.cfg"]
    # The daemon's user may not be allowed to search the folders. ``_refusal`` reports that.
    with contextlib.suppress(OSError):
        for kind in ("site-packages", "dist-p*"):
            for place in root.glob(f"lib*/python3*/{kind}"):
                files += [place, *place.glob("aioflow*")]
    found = []
    for file in sorted(set(files)):
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((str(file), status.st_mtime_ns, status.st_ino))
    return tuple(found)


class PythonPaths:
    """Reads the paths of interpreters again when the settings file has changed.

    An invalid file changes nothing. The log states what is wrong with the file.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stamp = _file_stamp(home / FILE_NAME)

    def reread(self) -> Mapping[str, str] | None:
        """Return the paths by name if the file has changed; ``None`` otherwise. Blocks."""
        stamp = _file_stamp(self._home / FILE_NAME)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            return Settings.read(self._home).pythons
        except SettingsError as exc:
            _logger.error("the settings are invalid: the pythons are unchanged: %s", exc)  # noqa: TRY400
            return None


def _file_stamp(file: Path) -> tuple[int, int, int]:
    """Return a fingerprint that changes when the file is written or replaced; zeros if missing."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size
