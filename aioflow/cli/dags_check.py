"""Parse DAG files as the daemon would, each in its own process, and report their problems."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import anyio
import msgspec

from aioflow.catalog.dag_files import names_us
from aioflow.catalog.data_files import Choice, DataFileUse, FilesBeside
from aioflow.catalog.folder_scan import scan
from aioflow.catalog.parse import Parser
from aioflow.cli.offline_parser import lone_parser
from aioflow.cli.output import hint, print_json, safe
from aioflow.errors import DuplicateDag
from aioflow.protocol.parse_results import DagFailure, Parsed
from aioflow.settings import Settings

__all__ = ("Checked", "allowed_of", "check", "choice_of", "folders_of", "parse_files", "place_of")


class Checked(msgspec.Struct, kw_only=True):
    """The result for one file.

    Attributes:
        warnings: Problems that do not keep the DAGs from running.
        isolated: Per DAG, the reasons why it runs in worker processes of its own.
    """

    file: str
    dags: list[str]
    problems: list[DagFailure]
    warnings: list[DagFailure]
    isolated: dict[str, tuple[str, ...]] = {}


def check(arguments: argparse.Namespace) -> int:
    """Print the problems of the files. Return 1 if there is any."""
    named: list[str] = arguments.files
    within = [Path(path).absolute() for path in named if Path(path).is_dir()]
    files = list(dict.fromkeys(chain.from_iterable(map(_files_of, named))))
    folders = (*folders_of(arguments), *within)
    parsed = anyio.run(_check_files, files, folders, allowed_of(arguments))
    # Within a folder, a file without DAGs and problems may be a module that others import.
    found = [one for one in parsed if one.dags or one.problems or one.file in named]
    for checked in found:
        checked.problems += _not_read(checked)
    if arguments.json:
        print_json([_shown(checked) for checked in found])
    else:
        for checked in found:
            for problem in checked.problems:
                print(_line(checked.file, problem))
            for warning in checked.warnings:
                hint(_line(checked.file, warning))
            for dag_id, reasons in checked.isolated.items():
                why = safe("; ".join(reasons))
                hint(f"{safe(checked.file)}: {dag_id} runs in hosts of its own: {why}")
            if not checked.problems:
                print(f"{safe(checked.file)}: {', '.join(checked.dags)}: ok")
    return 1 if any(checked.problems for checked in found) else 0


def _not_read(checked: Checked) -> Iterator[DagFailure]:
    """Yield why a daemon would find no DAG in a file that has no other problem."""
    if checked.problems:
        return
    if not checked.dags:
        message = "the file defines no DAG; one is made by `from aioflow import dag` or `DAG`"
        yield DagFailure("dag.none", message, 0)
    elif not names_us(Path(checked.file).read_bytes()):
        yield DagFailure(
            "file.unnamed",
            "a daemon passes this file over, as the word aioflow is not in it; "
            "write `import aioflow` at its top",
            1,
        )


def _line(file: str, said: DagFailure) -> str:
    return f"{safe(file)}:{said.line}: {said.reason} {safe(said.message)}"


def _shown(checked: Checked) -> dict[str, object]:
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
    files: Sequence[str], folders: Sequence[Path], allowed: Sequence[str]
) -> list[Checked]:
    parsed = await parse_files([Path(file) for file in files], folders, allowed)
    found: list[Checked] = []
    first: dict[str, str] = {}
    for file, result in zip(files, parsed, strict=True):
        choice = choice_of(Path(file), folders, result)
        problems = list(result.failures)
        if choice.refusal is not None:
            problems.append(choice.refusal)
        for spec in result.dags:
            if first.setdefault(spec.dag_id, file) != file:
                duplicate = DuplicateDag(spec.dag_id, first[spec.dag_id])
                problems.append(DagFailure(duplicate.code, str(duplicate), spec.line))
        dags = [spec.dag_id for spec in result.dags]
        isolated = {spec.dag_id: spec.isolated for spec in result.dags if spec.isolated}
        warnings = [*result.odd, *choice.said]
        checked = Checked(
            file=file, dags=dags, problems=problems, warnings=warnings, isolated=isolated
        )
        found.append(checked)
    return found


def choice_of(file: Path, folders: Sequence[Path], parsed: Parsed) -> Choice:
    """Return the data files that belong to a DAG file's version, besides its modules."""
    if not parsed.dags:
        return Choice()
    folder, name = place_of(file, folders)
    asked = DataFileUse(folder, parsed.beside, frozenset(parsed.modules))
    return FilesBeside().look({name: asked})[name]


def _files_of(path: str) -> Sequence[str]:
    """Expand a folder to the files that a daemon would treat as DAG files.

    A path that is no folder, that cannot be read, or that has no DAG files is returned itself.
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
    files: Iterable[Path], folders: Sequence[Path], allowed: Sequence[str]
) -> list[Parsed]:
    """Parse the files and return the result of each.

    Args:
        files: The files.
        folders: The DAG folders, see ``place_of``.
        allowed: See ``Children``.
    """
    async with lone_parser("aioflow-check-", allowed) as parser:
        return [await _parse(parser, file, folders) for file in files]


async def _parse(parser: Parser, file: Path, folders: Sequence[Path]) -> Parsed:
    path = anyio.Path(file)
    if not await path.is_file():
        is_folder = await path.is_dir()
        why = "no DAG file can be found in it" if is_folder else "there is no such file"
        return Parsed((), (DagFailure("file.missing", why, 0),), ())
    folder, name = place_of(file, folders)
    return await parser.parse(folder, name)


def folders_of(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Return the DAG folder of ``--dags``, else those of the daemon."""
    if arguments.dags is not None:
        return (Path(arguments.dags).absolute(),)
    return tuple(folder.absolute() for folder in Settings.read(arguments.home).dags)


def allowed_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the additional environment variables that the daemon passes to its children."""
    return Settings.read(arguments.home).children_env


def place_of(file: Path, folders: Sequence[Path]) -> tuple[Path, str]:
    """Return the DAG folder of a file, or its own folder if it is in none, and the path within.

    Links within a folder are not resolved: a daemon uses the names it finds there, and so does
    this. The folder itself is recognized through links.
    """
    path = Path(os.path.normpath(file.absolute()))
    for folder in folders:
        for above in path.parents:
            if above == folder or (folder.is_dir() and above.samefile(folder)):
                return folder, path.relative_to(above).as_posix()
    return path.parent, path.name
