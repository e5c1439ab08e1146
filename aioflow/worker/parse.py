"""The parser: imports one DAG file or plug-in in its own process and reports its definitions."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from aioflow.author.dag import registered
from aioflow.author.describe import describe
from aioflow.author.lint import advice
from aioflow.errors import AioflowError
from aioflow.protocol.commands import Inspect, Parse
from aioflow.protocol.parse_results import Beside, DagFailure, Inspected, Named, Parsed
from aioflow.worker.data_files import BadFiles, UsedFiles
from aioflow.worker.failures import failure_of, print_traceback
from aioflow.worker.frames import BlockingLink
from aioflow.worker.imports import Reach
from aioflow.worker.loader import CodeMissing, WholeProcess
from aioflow.worker.module_names import ModuleState
from aioflow.worker.plugin import inspect_plugin
from aioflow.worker.process_state import ProcessState
from aioflow.worker.shared_state import SharedState, shown
from aioflow.worker.stdio import flush
from aioflow.worker.trigger_code import trigger_digests

__all__ = ("handle",)

_REASON_LENGTH = 300

_HALF_MADE = "partially initialized module"
_UNDECODABLE = ("codec can't decode", "encoding problem", "unknown encoding", "Non-UTF-8", "BOM")


def handle(
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
            # Send this before running any code, so that it is known even if the import crashes.
            link.send([Named(*_reached(reach))])
            found = _parse(folder, command.file, reach, used, shared, modules)
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
    # Restore first: what the file replaced may not work.
    changed = shared.put_back()
    replaced = modules.end()
    failures = [_changed(changed)] if changed else []
    if problem is not None:
        failures.append(_failure(problem, folder))
        print_traceback(problem)
    if failures:
        _follow(reach, folder, problem)
        files, wanted = _reached(reach)
        return Parsed((), tuple(failures), files, wanted=wanted, beside=_beside(used))
    changes = state.changes()
    if replaced:
        changes.append(f"replaces {shown(replaced)}")
    return _isolated(_described(folder, file, reach, used), changes)


def _beside(used: UsedFiles) -> Beside:
    """Return the files used by a failed DAG file: a change to any of them causes a new parse."""
    try:
        return used.found()
    except BadFiles:
        return Beside()


def _isolated(parsed: Parsed, changes: Sequence[str]) -> Parsed:
    """Mark the DAGs of a file as isolated, each in its own worker process, with the reasons."""
    if not changes:
        return parsed
    reasons = tuple(f"importing the file {change}"[:_REASON_LENGTH] for change in changes)
    dags = [replace(dag, isolated=(*dag.isolated, *reasons)) for dag in parsed.dags]
    return replace(parsed, dags=tuple(dags))


def _changed(names: list[str]) -> DagFailure:
    message = f"importing the file replaces {shown(names)}, which all DAGs share"
    return DagFailure("patched", message)


def _described(folder: Path, file: str, reach: Reach, used: UsedFiles) -> Parsed:
    dags, failures, odd = [], [], []
    found = registered(str(folder / file))
    for dag in found:
        try:
            spec, wrong = describe(dag, file=file)
            odd += advice(dag) if spec is not None else []
        except BaseException as exc:  # noqa: BLE001 - defaults and timetables are user code
            failures.append(_failure(exc, folder))
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
        beside, dags = Beside(), []
        failures.insert(0, DagFailure("files", str(exc)))
    return Parsed(tuple(dags), tuple(failures), modules, digests, tuple(odd), wanted, beside)


def _failure(problem: BaseException, folder: Path) -> DagFailure:
    message = failure_of(problem).message
    line = _line(problem, folder)
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
            return DagFailure("import_error", message, line)
        case _:
            return DagFailure("raised", f"{type(problem).__name__}: {message}", line)


def _line(problem: BaseException, folder: Path) -> int:
    """Return the innermost line of the author's own code in the traceback, or 0."""
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

    A helper that fails to import is not in ``sys.modules``, but fixing it must cause a new parse.
    """
    below = f"{folder}/"
    found = [
        name
        for name in (*_imported(), *_on_the_way(problem))
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


def _on_the_way(problem: BaseException | None) -> Iterator[str]:
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        if isinstance(problem, SyntaxError) and problem.filename:
            yield problem.filename
        for frame, _ in traceback.walk_tb(problem.__traceback__):
            yield frame.f_code.co_filename
        problem = problem.__cause__ or problem.__context__
