"""The role ``parser``: imports one DAG file or plug-in, says what it defines, and is gone."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from aioflow.author.advice import advice
from aioflow.author.dag import registered
from aioflow.author.describe import describe
from aioflow.errors import AioflowError, LinkClosed
from aioflow.findings import DagFailure, Inspected, Parsed
from aioflow.host.failures import failure_of, print_traceback
from aioflow.host.imports import reachable
from aioflow.host.link import BlockingLink
from aioflow.host.loader import CodeMissing, WholeProcess
from aioflow.host.plug_in import look_at
from aioflow.host.process import limit_parser
from aioflow.host.streams import flush, line_by_line
from aioflow.host.trigger_code import trigger_digests
from aioflow.orders import Inspect, Order, Parse

__all__ = ("parse", "parse_one")


def parse_one(link: BlockingLink, first: Sequence[Order] = ()) -> None:
    """Take one order, answer it, end."""
    line_by_line()
    limit_parser()
    order = (first or link.receive())[0]
    found: Parsed | Inspected
    match order:
        case Parse():
            found = parse(Path(order.folder), order.file)
        case Inspect():
            found = look_at(order.entry_point)
        case _:
            raise LinkClosed(f"a parser was ordered {type(order).__name__}")
    flush()
    link.send([found])
    # Threads that the file started, and what it registered for the end, have no say in this.
    os._exit(0)


def parse(folder: Path, file: str) -> Parsed:
    """Import a DAG file and return its DAGs, or why there are none.

    Whatever the file does on the way, up to ``sys.exit`` and running out of memory, becomes a
    failure of its own. One wrong DAG does not take the others of the file with it.
    """
    try:
        WholeProcess(folder).load_file(file)
    except BaseException as exc:  # noqa: BLE001 - a DAG file may raise anything
        failure = _failure(exc, folder)
        print_traceback(exc)
        return Parsed((), (failure,), _modules(folder, file, exc))
    return _described(folder, file)


def _described(folder: Path, file: str) -> Parsed:
    dags, failures, odd = [], [], []
    for dag in registered(str(folder / file)):
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
    modules = _modules(folder, file, None)
    digests = trigger_digests(folder)
    return Parsed(tuple(dags), tuple(failures), modules, digests, tuple(odd))


def _failure(problem: BaseException, folder: Path) -> DagFailure:
    message = failure_of(problem).message
    line = _line(problem, folder)
    match problem:
        case AioflowError():
            return DagFailure(problem.code, message, line)
        case SyntaxError():
            return DagFailure("syntax_error", problem.msg or message, problem.lineno or line)
        case UnicodeDecodeError():
            return DagFailure("syntax_error", f"the file is not UTF-8: {message}", line)
        case SystemExit():
            return DagFailure("exit", message, line)
        case MemoryError():
            return DagFailure("memory", "importing the file took more memory than allowed", line)
        case CodeMissing():
            return DagFailure("gone", message, line)
        case RecursionError():
            return DagFailure("recursion", message, line)
        case ImportError():
            return DagFailure("import_error", message, line)
        case _:
            return DagFailure("raised", f"{type(problem).__name__}: {message}", line)


def _line(problem: BaseException, folder: Path) -> int:
    """Return the innermost line of the author's own code that led to it."""
    line = 0
    for frame, number in traceback.walk_tb(problem.__traceback__):
        if frame.f_code.co_filename.startswith(f"{folder}/"):
            line = number
    return line


def _modules(folder: Path, file: str, problem: BaseException | None) -> tuple[str, ...]:
    """Return the local files that went into this or may be imported when a task runs.

    A helper that does not import is in no ``sys.modules``, but mending it must lead to
    another parse.
    """
    found = {file}
    for name in [*_imported(), *_on_the_way(problem)]:
        path = Path(name)
        if path.suffix == ".py" and path.is_relative_to(folder) and path.is_file():
            found.add(path.relative_to(folder).as_posix())
    return tuple(sorted(reachable(folder, found)))


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
