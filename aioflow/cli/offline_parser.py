"""A parser for use without a daemon: for ``aioflow dags check`` and ``aioflow triggers kinds``.

It parses DAG files as the daemon would, each in a separate process, and reports their problems. It
also inspects the triggers that installed packages provide. Its processes and files are removed when
the command ends.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.catalog.data_files import Choice, DataFileUse, FilesBeside
from aioflow.catalog.folder_scan import names_aioflow, scan
from aioflow.catalog.interpreter_choice import UNCLEAR, choice_of_file
from aioflow.catalog.parse import Limits, Parser
from aioflow.catalog.plugins import PlugIn, inspect_plug_in, plug_ins
from aioflow.cli.output import hint, print_json, print_table, safe
from aioflow.clock import SystemClock
from aioflow.errors import BadExecutor, DuplicateDag
from aioflow.executors.backend import ExecutorBackend
from aioflow.executors.registry import UnusableBackend, check_executors, open_backends
from aioflow.model.workers import LOCAL
from aioflow.processes import Children
from aioflow.processes.interpreters import Interpreters
from aioflow.protocol.reports import DagFailure, Parsed
from aioflow.settings import Settings

__all__ = (
    "CheckedFile",
    "check_dags",
    "dag_folders",
    "data_files_of",
    "list_trigger_kinds",
    "parse_files",
    "path_in_folder",
    "temporary_parser",
)


@asynccontextmanager
async def temporary_parser(
    prefix: str,
    allowed: Sequence[str] = (),
    limits: Limits | None = None,
    pythons: Mapping[str, str] | None = None,
) -> AsyncIterator[Parser]:
    """Run a parser within the block, then remove its processes and files.

    Args:
        prefix: Prefix of the name of the parser's temporary folder.
        allowed: See ``Children``.
        limits: Limits and settings for parsing one file.
        pythons: The interpreters that files may choose, by name.
    """
    with tempfile.TemporaryDirectory(prefix=prefix) as home:
        children = Children(Path(home), allowed=allowed)
        clock = SystemClock()
        interpreters = Interpreters(children, clock, pythons)
        code, limits = Path(home) / "code", limits or Limits()
        parser = Parser(children, code, clock, limits, interpreters)
        async with anyio.create_task_group() as group:
            await group.start(children.run)
            await group.start(interpreters.run)
            await group.start(parser.run)
            yield parser
            group.cancel_scope.cancel()


class CheckedFile(msgspec.Struct, kw_only=True):
    """The result of checking one file.

    Attributes:
        warnings: Problems that do not prevent the DAGs from running.
        isolated: For each isolated DAG, the reasons why it runs in separate hosts.
    """

    file: str
    dags: list[str]
    problems: list[DagFailure]
    warnings: list[DagFailure]
    isolated: dict[str, tuple[str, ...]] = {}


def check_dags(arguments: argparse.Namespace) -> int:
    """Print the problems of the files. Return 1 if there are any."""
    named: list[str] = arguments.files
    within = [Path(path).absolute() for path in named if Path(path).is_dir()]
    files = list(dict.fromkeys(chain.from_iterable(map(_dag_files_in, named))))
    folders = (*dag_folders(arguments), *within)
    parsed = anyio.run(_check_files, files, folders, Settings.read(arguments.home))
    # If a file was found in a folder and has neither DAGs nor problems, it may be a module of other
    # files.
    found = [one for one in parsed if one.dags or one.problems or one.file in named]
    for checked in found:
        checked.problems += _why_not_loaded(checked)
    if arguments.json:
        print_json([_as_json(checked) for checked in found])
    else:
        for checked in found:
            for problem in checked.problems:
                print(_problem_line(checked.file, problem))
            for warning in checked.warnings:
                hint(_problem_line(checked.file, warning))
            for dag_id, reasons in checked.isolated.items():
                why = safe("; ".join(reasons))
                hint(f"{safe(checked.file)}: {dag_id} runs in separate hosts: {why}")
            if not checked.problems:
                print(f"{safe(checked.file)}: {', '.join(checked.dags)}: ok")
    return 1 if any(checked.problems for checked in found) else 0


def _why_not_loaded(checked: CheckedFile) -> Iterator[DagFailure]:
    """Yield why a daemon would find no DAG in a file, if the file has no other problem."""
    if checked.problems:
        return
    if not checked.dags:
        message = "the file defines no DAG; one is made by `from aioflow import dag` or `DAG`"
        yield DagFailure("dag.none", message, 0)
    elif not names_aioflow(Path(checked.file).read_bytes()):
        yield DagFailure(
            "file.unnamed",
            "a daemon passes this file over, as the word aioflow is not in it; "
            "write `import aioflow` at its top",
            1,
        )


def _problem_line(file: str, said: DagFailure) -> str:
    return f"{safe(file)}:{said.line}: {said.reason} {safe(said.message)}"


def _as_json(checked: CheckedFile) -> dict[str, object]:
    def as_data(said: DagFailure) -> dict[str, object]:
        return {"line": said.line, "code": said.reason, "message": said.message}

    return {
        "file": checked.file,
        "dags": checked.dags,
        "problems": [as_data(problem) for problem in checked.problems],
        "warnings": [as_data(warning) for warning in checked.warnings],
        "isolated": checked.isolated,
    }


async def _check_files(
    files: Sequence[str], folders: Sequence[Path], settings: Settings
) -> list[CheckedFile]:
    parsed = await parse_files([Path(file) for file in files], folders, settings)
    backends = open_backends(settings.executors)
    found: list[CheckedFile] = []
    first: dict[str, str] = {}
    for file, result in zip(files, parsed, strict=True):
        choice = data_files_of(Path(file), folders, result)
        unknown = [*_unknown_executors(result, backends)]
        result = check_executors(result, backends)  # noqa: PLW2901 - without DAGs that cannot run
        problems = list(result.failures)
        if choice.refusal is not None:
            problems.append(choice.refusal)
        for spec in result.dags:
            if first.setdefault(spec.dag_id, file) != file:
                duplicate = DuplicateDag(spec.dag_id, first[spec.dag_id])
                problems.append(DagFailure(duplicate.code, str(duplicate), spec.line))
        dags = [spec.dag_id for spec in result.dags]
        isolated = {spec.dag_id: spec.isolated for spec in result.dags if spec.isolated}
        warnings = [*result.odd, *choice.said, *unknown]
        checked = CheckedFile(
            file=file, dags=dags, problems=problems, warnings=warnings, isolated=isolated
        )
        found.append(checked)
    return found


def _unknown_executors(
    parsed: Parsed, backends: dict[str, ExecutorBackend]
) -> Iterator[DagFailure]:
    """Yield a warning for each executor that the settings lack. Treat it as an unusable executor.

    This is not an error, because the machine on which a file is checked may have settings that
    differ from those of the daemon.
    """
    for dag in parsed.dags:
        for task in dag.tasks:
            if task.executor != LOCAL and task.executor not in backends:
                why = f"a daemon without a table [executors.{task.executor}] refuses {dag.dag_id}"
                backends[task.executor] = UnusableBackend(task.executor, why)
                yield DagFailure(BadExecutor.code, why, task.line)


def data_files_of(file: Path, folders: Sequence[Path], parsed: Parsed) -> Choice:
    """Return the data files that belong to the version of a DAG file."""
    if not parsed.dags:
        return Choice()
    folder, name = path_in_folder(file, folders)
    asked = DataFileUse(folder, parsed.beside, frozenset(parsed.modules))
    return FilesBeside().look({name: asked})[name]


def _dag_files_in(path: str) -> Sequence[str]:
    """Return the files in a folder that a daemon would treat as DAG files.

    If ``path`` is not a folder, cannot be read, or has no DAG files, return ``path`` itself.
    """
    if not Path(path).is_dir():
        return (path,)
    folder = Path(path).absolute()
    found = scan([folder], {})
    files = [name for name, seen in found.files.items() if seen.has_dags and not seen.is_ignored]
    paths = [*(folder / name for name in files), *found.causes.values()]
    shown = [str(Path(path) / seen.relative_to(folder)) for seen in sorted(paths)]
    return shown or (path,)


async def parse_files(
    files: Iterable[Path], folders: Sequence[Path], settings: Settings
) -> list[Parsed]:
    """Parse the files and return the result of each.

    Args:
        files: The DAG files to parse.
        folders: The DAG folders, see ``path_in_folder``.
        settings: Settings of the home.
    """
    limits = Limits(default_executor=settings.executor)
    given = (settings.children_env, limits, settings.pythons)
    async with temporary_parser("aioflow-check-", *given) as parser:
        return [await _parse_file(parser, file, folders) for file in files]


async def _parse_file(parser: Parser, file: Path, folders: Sequence[Path]) -> Parsed:
    path = anyio.Path(file)
    if not await path.is_file():
        is_folder = await path.is_dir()
        why = "no DAG file can be found in it" if is_folder else "there is no such file"
        return Parsed((), (DagFailure("file.missing", why, 0),), ())
    folder, name = path_in_folder(file, folders)
    choice = await in_thread(choice_of_file, folder, name)
    if choice.problem:
        return Parsed((), (DagFailure(UNCLEAR, choice.problem),), ())
    return await parser.parse(folder, name, choice.name)


def dag_folders(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Return the DAG folder given by ``--dags``, or else those in the settings of the home."""
    if arguments.dags is not None:
        return (Path(arguments.dags).absolute(),)
    return tuple(folder.absolute() for folder in Settings.read(arguments.home).dags)


def path_in_folder(file: Path, folders: Sequence[Path]) -> tuple[Path, str]:
    """Return the DAG folder of a file, and the file's path within that folder.

    If the file is in no DAG folder, use the folder that contains it. As in a daemon, links within a
    DAG folder are not resolved. The DAG folder itself is also recognized if the path of the file
    leads to it through links.
    """
    path = Path(os.path.normpath(file.absolute()))
    for folder in folders:
        for above in path.parents:
            if above == folder or (folder.is_dir() and above.samefile(folder)):
                return folder, path.relative_to(above).as_posix()
    return path.parent, path.name


def list_trigger_kinds(arguments: argparse.Namespace) -> int:
    """Print the triggers of every plug-in. Return 1 if any plug-in is broken."""
    found = anyio.run(_inspect_plug_ins)
    if arguments.json:
        print_json([msgspec.to_builtins(plug_in) for plug_in in found])
    else:
        print_table(
            ("PLUG-IN", "PACKAGE", "TRIGGER", "WAITS FOR"),
            _kind_rows(found),
            empty="no plug-in provides triggers",
        )
        for broken in found:
            if broken.failure is not None:
                message = safe(broken.failure.message)
                hint(f"plug-in {broken.name} ({broken.module}) cannot be imported: {message}")
    return 1 if any(plug_in.failure is not None for plug_in in found) else 0


def _kind_rows(found: Sequence[PlugIn]) -> Iterable[tuple[str, str, str, str]]:
    """Return the rows of the table. A class that several entry points name is listed once."""
    rows: dict[str, tuple[str, str, str, str]] = {}
    for plug_in in found:
        for kind in plug_in.kinds:
            row = (plug_in.name, plug_in.package, kind.class_path, kind.summary)
            rows.setdefault(kind.class_path, row)
    return rows.values()


async def _inspect_plug_ins() -> list[PlugIn]:
    async with temporary_parser("aioflow-kinds-") as parser:
        return [await inspect_plug_in(plug_in, parser) for plug_in in plug_ins()]
