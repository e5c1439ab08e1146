"""Parses DAG files as the daemon would, each in a process of its own, and says what is wrong."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
import msgspec

from aioflow.catalog.parsing import Limits, Parser
from aioflow.children import Children
from aioflow.cli.output import hint, print_json, safe
from aioflow.clock import SystemClock
from aioflow.errors import DuplicateDag
from aioflow.findings import DagFailure, Parsed

__all__ = ("Checked", "check", "folder_of", "parse_files")


class Checked(msgspec.Struct, kw_only=True):
    """What came of one file.

    Attributes:
        warnings: What is odd, but runs.
    """

    file: str
    dags: list[str]
    problems: list[DagFailure]
    warnings: list[DagFailure]


def check(arguments: argparse.Namespace) -> int:
    """Print what is wrong with the files; 1 if anything is."""
    found = anyio.run(_check_files, arguments.files, arguments.dags)
    if arguments.json:
        print_json([_shown(checked) for checked in found])
    else:
        for checked in found:
            for problem in checked.problems:
                print(_line(checked.file, problem))
            for warning in checked.warnings:
                hint(_line(checked.file, warning))
            if not checked.problems:
                hint(f"{checked.file}: {', '.join(checked.dags)}: ok")
    return 1 if any(checked.problems for checked in found) else 0


def _line(file: str, said: DagFailure) -> str:
    return f"{file}:{said.line}: {said.reason} {safe(said.message)}"


def _shown(checked: Checked) -> dict[str, object]:
    def as_data(said: DagFailure) -> dict[str, object]:
        return {"line": said.line, "code": said.reason, "message": said.message}

    return {
        "file": checked.file,
        "dags": checked.dags,
        "problems": [as_data(problem) for problem in checked.problems],
        "warnings": [as_data(warning) for warning in checked.warnings],
    }


async def _check_files(files: Sequence[str], folder: str | None) -> list[Checked]:
    parsed = await parse_files([Path(file) for file in files], folder)
    found: list[Checked] = []
    first: dict[str, str] = {}
    for file, result in zip(files, parsed, strict=True):
        problems = list(result.failures)
        for spec in result.dags:
            if first.setdefault(spec.dag_id, file) != file:
                duplicate = DuplicateDag(spec.dag_id, first[spec.dag_id])
                problems.append(DagFailure(duplicate.code, str(duplicate), spec.line))
        if not problems and not result.dags:
            problems.append(DagFailure("dag.none", "the file defines no DAG", 0))
        dags = [spec.dag_id for spec in result.dags]
        found.append(Checked(file=file, dags=dags, problems=problems, warnings=list(result.odd)))
    return found


async def parse_files(files: Iterable[Path], folder: str | None) -> list[Parsed]:
    """Return what each file defines.

    Args:
        files: Which.
        folder: The DAG folder they belong to; told from where they lie by default.
    """
    results: list[Parsed] = []
    with tempfile.TemporaryDirectory(prefix="aioflow-check-") as home:
        children = Children(Path(home))
        parser = Parser(children, Path(home) / "code", SystemClock(), Limits())
        async with anyio.create_task_group() as group:
            await group.start(children.run)
            results += [await _parse(parser, file, folder) for file in files]
            group.cancel_scope.cancel()
    return results


async def _parse(parser: Parser, file: Path, folder: str | None) -> Parsed:
    path = Path(await anyio.Path(file).resolve())
    if not await anyio.Path(path).is_file():
        return Parsed((), (DagFailure("file.missing", "there is no such file", 0),), ())
    below = folder_of(path, folder)
    return await parser.parse(below, path.relative_to(below).as_posix())


def folder_of(path: Path, folder: str | None) -> Path:
    """Return the DAG folder of a file: the one given, ``./dags``, or where the file lies."""
    for candidate in (folder, "dags"):
        if candidate is not None:
            below = Path(candidate).resolve()
            if path.is_relative_to(below):
                return below
    return path.parent
