"""The role ``parser``: imports each DAG file or plug-in in a fork and reports its definitions.

The parent has imported what every DAG file needs and never runs user code. Each file gets a new
process, which costs a fork instead of a full start. The parent supervises the fork. The effects of
a file are confined to its process, and all processes that the file starts are killed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from aioflow.author.dag import DAG, registered
from aioflow.author.dag_spec import describe, lint
from aioflow.author.trigger import Trigger, class_path
from aioflow.errors import AioflowError, LinkClosed
from aioflow.protocol.commands import Command, Inspect, Parse, ParserLimits
from aioflow.protocol.reports import (
    NO_PARSER_CAPACITY,
    DagFailure,
    DataFiles,
    Inspected,
    NamesFound,
    Parsed,
    ParserDied,
    TriggerKind,
)
from aioflow.worker import process_tree
from aioflow.worker.code.data_files import BadFiles, UsedFiles
from aioflow.worker.code.imports import Reach, trigger_digests
from aioflow.worker.code.loader import CodeMissing, WholeProcess
from aioflow.worker.code.shared_state import (
    ModuleState,
    ProcessState,
    SharedState,
    shown,
    watch_loaders,
)
from aioflow.worker.failures import failure_of, print_traceback
from aioflow.worker.link import BlockingLink, complete_frames
from aioflow.worker.process import adopt_orphans, die_with_parent, limit_parser, lower_priority
from aioflow.worker.query.messages import UNDECODABLE
from aioflow.worker.stdio import configure_logging, flush, line_by_line

__all__ = (
    "Forking",
    "handle_parse_command",
    "inspect_plugin",
)


def inspect_plugin(entry_point: str) -> Inspected:
    """Import a plug-in. Return its triggers, or the failure.

    Args:
        entry_point: ``module``, for all trigger classes it names; or ``module:Class``.
    """
    module, _, name = entry_point.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
        classes = [found] if isinstance(found, type) else list(vars(found).values())
        kinds = tuple(_trigger_kinds(classes, module.partition(".")[0]))
    except BaseException as exc:  # noqa: BLE001 - a plug-in may raise anything
        print_traceback(exc)
        reason = "exit" if isinstance(exc, SystemExit) else "import_error"
        return Inspected((), DagFailure(reason, f"{type(exc).__name__}: {failure_of(exc).message}"))
    return Inspected(kinds)


def _trigger_kinds(found: list[object], package: str) -> Iterator[TriggerKind]:
    """Yield the public triggers defined in the plug-in's own package.

    Imported ones are left out.
    """
    for cls in found:
        if not (isinstance(cls, type) and issubclass(cls, Trigger)):
            continue
        if cls.__module__.partition(".")[0] == package and not cls.__name__.startswith("_"):
            summary = (inspect.getdoc(cls) or "").partition("\n")[0]
            # A dataclass without a docstring gets its signature as its docstring.
            has_own = "__doc__" in vars(cls) and not summary.startswith(f"{cls.__name__}(")
            public = tuple(map(str, cls.public_fields))
            yield TriggerKind(class_path(cls), summary if has_own else "", public)


_REASON_LENGTH = 300

_HALF_MADE = "partially initialized module"
_UNDECODABLE = ("codec can't decode", "encoding problem", "unknown encoding", "Non-UTF-8", "BOM")


def handle_parse_command(
    command: Parse | Inspect, link: BlockingLink, shared: SharedState, modules: ModuleState
) -> None:
    """Handle one command and report the result.

    Args:
        shared: Process state that a file must leave unchanged.
        modules: Module state that a file may change only if its DAGs are isolated.
    """
    found: Parsed | Inspected
    match command:
        case Parse():
            folder = Path(command.folder)
            used = UsedFiles(folder, command.file)
            reach = Reach(folder, used.take)
            reach.add([command.file])
            # Send this before running any code, so that the daemon has it even if the import
            # crashes.
            link.send([NamesFound(*_reached(reach))])
            found = _of_interpreter(
                _parse(folder, command.file, reach, used, shared, modules),
                command.interpreter,
                registered(str(folder / command.file)),
            )
        case Inspect():
            found = inspect_plugin(command.entry_point)
    flush()
    link.send([found])


def _parse(
    folder: Path,
    file: str,
    reach: Reach,
    used: UsedFiles,
    shared: SharedState,
    modules: ModuleState,
) -> Parsed:
    """Import a DAG file. Return its DAGs, or the failures.

    Whatever the import does, including ``sys.exit`` and running out of memory, becomes a failure of
    this file. One invalid DAG does not affect the others in the file.
    """
    problem: BaseException | None = None
    code = WholeProcess(folder)
    state = ProcessState(str(folder))
    modules.begin(str(folder))
    used.opened.begin()
    try:
        code.load_file(file)
    except BaseException as exc:  # noqa: BLE001 - a DAG file may raise anything
        problem = exc
    used.opened.end()
    # Restore first, because names that the file replaced may not work.
    changed = shared.restore()
    replaced = modules.end()
    failures = [_patched_failure(changed)] if changed else []
    if problem is not None:
        failures.append(_dag_failure(problem, folder))
        print_traceback(problem)
    if failures:
        _follow(reach, folder, problem)
        files, wanted = _reached(reach)
        return Parsed((), tuple(failures), files, wanted=wanted, beside=_beside(used))
    changes = state.changes()
    if replaced:
        changes.append(f"replaces {shown(replaced)}")
    return _isolated(_described(folder, file, reach, used), changes)


def _of_interpreter(parsed: Parsed, interpreter: str, found: Sequence[DAG]) -> Parsed:
    """Record the interpreter in the DAGs of a file. Reject DAGs that name another one."""
    wrong = [
        DagFailure(
            "file.python_differs",
            f"DAG {dag.dag_id!r} says python={dag.python!r}, but its file is parsed by "
            f"{_shown_interpreter(interpreter)}; write in one of its first 20 lines: "
            f'# aioflow: python = "{dag.python}"',
            dag.line,
        )
        for dag in found
        if dag.python is not None and dag.python != interpreter
    ]
    if wrong:
        return replace(parsed, dags=(), failures=(*wrong, *parsed.failures))
    return replace(parsed, dags=tuple(replace(dag, interpreter=interpreter) for dag in parsed.dags))


def _shown_interpreter(name: str) -> str:
    """Return the name of an interpreter for messages."""
    return f"python {name!r}" if name else "the python of the daemon"


def _beside(used: UsedFiles) -> DataFiles:
    """Return the files that a failed DAG file uses. A change to any of them causes a new parse."""
    try:
        return used.found()
    except BadFiles:
        return DataFiles()


def _isolated(parsed: Parsed, changes: Sequence[str]) -> Parsed:
    """Mark the DAGs of a file as isolated in separate worker processes, and add the reasons."""
    if not changes:
        return parsed
    reasons = tuple(f"importing the file {change}"[:_REASON_LENGTH] for change in changes)
    dags = [replace(dag, isolated=(*dag.isolated, *reasons)) for dag in parsed.dags]
    return replace(parsed, dags=tuple(dags))


def _patched_failure(names: list[str]) -> DagFailure:
    message = f"importing the file replaces {shown(names)}, which all DAGs share"
    return DagFailure("patched", message)


def _described(folder: Path, file: str, reach: Reach, used: UsedFiles) -> Parsed:
    dags, failures, odd = [], [], []
    found = registered(str(folder / file))
    for dag in found:
        try:
            spec, wrong = describe(dag, file=file)
            odd += lint(dag) if spec is not None else []
        except BaseException as exc:  # noqa: BLE001 - defaults and timetables are user code
            failures.append(_dag_failure(exc, folder))
            print_traceback(exc)
            continue
        failures += wrong
        if spec is not None:
            dags.append(spec)
    _follow(reach, folder, None)
    modules, wanted = _reached(reach)
    digests = trigger_digests(folder)
    try:
        beside = used.found(tuple(pattern for dag in found for pattern in dag.reads))
    except BadFiles as exc:
        beside, dags = DataFiles(), []
        failures.insert(0, DagFailure("files", str(exc)))
    return Parsed(tuple(dags), tuple(failures), modules, digests, tuple(odd), wanted, beside)


def _dag_failure(problem: BaseException, folder: Path) -> DagFailure:
    message = failure_of(problem).message
    line = _innermost_line(problem, folder)
    match problem:
        case AioflowError():
            return DagFailure(problem.code, message, line)
        case SyntaxError() if _is_undecodable(problem):
            return DagFailure("encoding", problem.msg or message, problem.lineno or line)
        case SyntaxError():
            return DagFailure("syntax_error", problem.msg or message, problem.lineno or line)
        case ValueError() if "null bytes" in message:
            return DagFailure("syntax_error", message, line)
        case SystemExit():
            return DagFailure("exit", message, line)
        case MemoryError():
            return DagFailure("memory", "importing the file took more memory than allowed", line)
        case CodeMissing():
            return DagFailure("gone", message, line)
        case RecursionError():
            return DagFailure("recursion", message, line)
        case ImportError() | AttributeError() if _HALF_MADE in message or _is_cycle(problem):
            return DagFailure("import_cycle", message, line)
        case ImportError():
            return DagFailure("import_error", f"{message}{_advice(problem)}", line)
        case _:
            return DagFailure("raised", f"{type(problem).__name__}: {message}", line)


_EXTRAS = {"jinja2": "templates", "jsonschema": "params", "referencing": "params"}
"""For each library that aioflow imports only when needed, the ``aioflow-worker`` extra with it."""


def _advice(problem: ImportError) -> str:
    """Return what to install if a library that aioflow needs is missing in this environment."""
    extra = _EXTRAS.get(problem.name or "")
    return f"; install aioflow-worker[{extra}] in the environment of this file" if extra else ""


def _innermost_line(problem: BaseException, folder: Path) -> int:
    """Return the innermost line of the author's code in the traceback; 0 if there is none."""
    line = 0
    for frame, number in traceback.walk_tb(problem.__traceback__):
        if frame.f_code.co_filename.startswith(f"{folder}/"):
            line = number
    return line


def _is_cycle(problem: ImportError | AttributeError) -> bool:
    """Return whether a name was requested from a file that was still being imported."""
    path = getattr(problem, "path", None)
    frames = traceback.walk_tb(problem.__traceback__)
    return path is not None and any(frame.f_code.co_filename == path for frame, _ in frames)


def _is_undecodable(problem: SyntaxError) -> bool:
    return any(words in (problem.msg or "") for words in _UNDECODABLE)


def _reached(reach: Reach) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(sorted(reach.files)), tuple(sorted(reach.wanted))


def _follow(reach: Reach, folder: Path, problem: BaseException | None) -> None:
    """Add the files that were imported, and the paths where a module was not found.

    A helper that fails to import is not in ``sys.modules``, but a fix of the helper must cause a
    new parse.
    """
    below = f"{folder}/"
    found = [
        name
        for name in (*_imported(), *_traceback_files(problem))
        if name.startswith(below) and name.endswith(".py") and Path(name).is_file()
    ]
    reach.add(name.removeprefix(below) for name in found)
    if isinstance(problem, ModuleNotFoundError) and problem.name:
        reach.wanted.add(problem.name.replace(".", "/"))


def _imported() -> Iterator[str]:
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str):
            yield name


def _traceback_files(problem: BaseException | None) -> Iterator[str]:
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        if isinstance(problem, SyntaxError) and problem.filename:
            yield problem.filename
        for frame, _ in traceback.walk_tb(problem.__traceback__):
            yield frame.f_code.co_filename
        problem = problem.__cause__ or problem.__context__


POLL_SECONDS = 0.1
"""Seconds between two checks of the number of processes."""

_FAULT = 70
_CLOSED = 113
"""Exit status of a fork in which the file has closed the link."""
_decoder = msgspec.msgpack.Decoder(list[Parsed | Inspected | NamesFound])
_LAST_WORDS = 2_048
_CHUNK = 64 * 1024


class Forking:
    """The parser's parent process, which forks a child for each file.

    Args:
        sock: The socket of the link.
    """

    def __init__(self, link: BlockingLink, sock: socket.socket) -> None:
        self._link = link
        self._sock = sock
        line_by_line()
        lower_priority()
        adopt_orphans()
        configure_logging()  # as in a shared child, where changes to logging would matter
        watch_loaders()
        self._shared = SharedState()
        self._modules = ModuleState(sys.modules)
        gc.collect()
        gc.freeze()  # pages that are never written are not copied after a fork

    def run(self, first: Sequence[Command] = ()) -> None:
        """Process one file after another until the link closes."""
        commands = list(first)
        while True:
            for command in commands:
                if not isinstance(command, Parse | Inspect):
                    raise LinkClosed(f"a parser was ordered {type(command).__name__}")
                self._link.send([self._look(command)])
            commands = self._link.receive()

    def _look(self, command: Parse | Inspect) -> Parsed | Inspected | ParserDied:
        with ExitStack() as ours:
            with ExitStack() as theirs:
                try:
                    pid, sock, output = self._fork(command, ours, theirs)
                except OSError as exc:
                    return ParserDied(exc.errno or 0, b"", NO_PARSER_CAPACITY, exc.strerror or "")
            return _Watch(pid, sock, output, command.limits).result()

    def _fork(
        self, command: Parse | Inspect, ours: ExitStack, theirs: ExitStack
    ) -> tuple[int, socket.socket, int]:
        """Fork a process. Return its pid and our ends of its link and its output."""
        sock, sock_end = socket.socketpair()
        ours.callback(sock.close)
        theirs.callback(sock_end.close)
        output, output_end = os.pipe()
        ours.callback(os.close, output)
        theirs.callback(os.close, output_end)
        pid = os.fork()
        if pid == 0:
            sock.close()
            os.close(output)
            self._be_forked(command, sock_end, output_end)
        return pid, sock, output

    def _be_forked(self, command: Parse | Inspect, sock: socket.socket, output: int) -> NoReturn:
        """Run as the forked process that imports the file. Never returns."""
        try:
            os.setsid()
            die_with_parent()
            self._sock.close()
            for number in (1, 2):
                os.dup2(output, number)
            os.close(output)
            limit_parser(command.limits.memory_bytes)
            handle_parse_command(command, _LinkOfFork(sock), self._shared, self._modules)
            # Exit without waiting for the file's threads and running its exit handlers.
            os._exit(0)
        except BaseException as exc:  # noqa: BLE001 - nothing may lead back into the fork's parent
            print_traceback(exc)
        finally:
            os._exit(_FAULT)


class _LinkOfFork(BlockingLink):
    """A link that exits the process if the imported file has closed the link's socket.

    The inode is compared, because the file may have opened another socket with the same number.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._number = sock.fileno()
        self._inode = os.fstat(self._number).st_ino

    def send(self, messages: Sequence[object]) -> None:
        """See ``BlockingLink``."""
        try:
            is_ours = os.fstat(self._number).st_ino == self._inode
        except OSError:
            is_ours = False
        if not is_ours:
            os._exit(_CLOSED)
        super().send(messages)


class _Watch:
    """Supervises one forked process until it has ended, with all processes that it started."""

    def __init__(self, pid: int, sock: socket.socket, output: int, limits: ParserLimits) -> None:
        self._pid = pid
        self._sock = sock
        self._output = output
        self._limits = limits
        self._until = time.monotonic() + limits.wall_seconds
        self._buffer = bytearray()
        self._tasks = process_tree.machine_thread_count()
        self._printed = 0
        self._last_words = b""
        self._named = NamesFound()
        self._answer: Parsed | Inspected | None = None
        self._went_beyond = ("", "")

    def result(self) -> Parsed | Inspected | ParserDied:
        """Return the report of the process, or how the process ended."""
        handle = os.pidfd_open(self._pid)
        try:
            self._listen(handle)
            self._kill()
            status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        finally:
            os.close(handle)
        self._take_rest()
        left = process_tree.kill_descendants()
        if status == _CLOSED and not self._went_beyond[0]:
            message = "importing the file closed descriptors that it had not opened"
            self._went_beyond = ("descriptors", message)
        if self._answer is None:
            return ParserDied(status, self._last_words, *self._went_beyond, self._named)
        return _with_left(self._answer, left)

    def _listen(self, handle: int) -> None:
        poll = select.poll()
        for descriptor in (self._sock.fileno(), self._output, handle):
            poll.register(descriptor, select.POLLIN)
        look_at = time.monotonic() + POLL_SECONDS
        while self._answer is None and not self._went_beyond[0]:
            ready = {descriptor for descriptor, _ in poll.poll(POLL_SECONDS * 1e3)}
            if self._output in ready and not self._take_output():
                poll.unregister(self._output)
            if self._sock.fileno() in ready and not self._take_reports():
                poll.unregister(self._sock)
            if handle in ready:
                return
            if time.monotonic() >= look_at:  # also while it prints without a pause
                self._count_processes()
                look_at = time.monotonic() + POLL_SECONDS
            if time.monotonic() > self._until:
                seconds = self._limits.wall_seconds
                self._went_beyond = ("timeout", f"parsing took longer than {seconds:g} s")

    def _take_rest(self) -> None:
        """Read all that the process had sent before it died, including the end of its output."""
        self._take_output()
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while poll.poll(0) and self._take_reports():
            pass

    def _take_output(self) -> bool:
        """Read and count the process's output. Return whether there may be more."""
        os.set_blocking(self._output, False)
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._last_words = (self._last_words + data)[-_LAST_WORDS:]
        self._printed += len(data)
        if self._printed > self._limits.output_bytes and not self._went_beyond[0]:
            limit = self._limits.output_bytes // 1024
            message = f"importing the file printed more than {limit} KiB"
            self._went_beyond = ("output", message)
        return bool(data)

    def _take_reports(self) -> bool:
        """Read the reports. Ignore any after the answer. Return whether there may be more."""
        try:
            data = self._sock.recv(_CHUNK * 16, socket.MSG_DONTWAIT)
            self._buffer += data
            for frame in complete_frames(self._buffer):
                for report in _decoder.decode(frame):
                    self._take(report)
        except BlockingIOError:
            return True
        except (OSError, LinkClosed, *UNDECODABLE):
            return False  # the file wrote to a descriptor that is not its own
        return bool(data)

    def _take(self, report: Parsed | Inspected | NamesFound) -> None:
        if isinstance(report, NamesFound):
            self._named = report
        elif self._answer is None:
            self._answer = report

    def _count_processes(self) -> None:
        limit = self._limits.processes
        tasks = process_tree.machine_thread_count()
        if 0 <= tasks < self._tasks + limit:
            return
        if process_tree.descendant_count() > limit:
            message = f"importing the file started more than {limit} processes"
            self._went_beyond = ("processes", message)

    def _kill(self) -> None:
        """Kill the process.

        If it sent no answer, first kill its whole session, before that grows.
        """
        for kill in (os.kill,) if self._answer is not None else (os.killpg, os.kill):
            # The process may not have created its session yet. Until it is waited for, it exists at
            # least as a zombie. A process that now belongs to another user cannot be killed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)


def _with_left(answer: Parsed | Inspected, left: int) -> Parsed | Inspected:
    if not left or isinstance(answer, Inspected):
        return answer
    message = f"importing the file left {left} processes behind, which were killed"
    failures = (*answer.failures, DagFailure("processes", message))
    return msgspec.structs.replace(answer, failures=failures)
