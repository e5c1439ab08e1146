"""Results of parsing DAG files and plug-ins, reported to the daemon."""

from __future__ import annotations

import msgspec

from aioflow.model.dag import DagSpec

__all__ = (
    "NO_ROOM",
    "Beside",
    "DagFailure",
    "Inspected",
    "Named",
    "Parsed",
    "ParserDied",
    "TriggerKind",
)


NO_ROOM = "no_room"
"""The limit name if the machine had no resources to start a parser. The file is not at fault."""


class _Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message on the link, see ``protocol.reports``."""


class DagFailure(_Wire, frozen=True):
    """The reason why a file could not be parsed, or one of its DAGs is invalid."""

    reason: str
    message: str
    line: int = 0


class Beside(_Wire, frozen=True):
    """The files beside its modules that a DAG file uses, relative to the DAG folder.

    Attributes:
        paths: Targets of expressions built on ``__file__``, also outside the DAG folder, each with
            its line; 0 for one in a module that it imports.
        named: Files and folders that its strings name, and folders that its import listed.
        opened: Files that its import has read, each with its stamp at that time; empty if it had
            none.
        written: Files that its import has written.
        patterns: Patterns of its line ``# aioflow: files = [...]``; ``None`` without one.
        reads: Patterns of files that its DAGs declare to read.
    """

    paths: dict[str, int] = {}
    named: tuple[str, ...] = ()
    opened: dict[str, tuple[int, ...]] = {}
    written: tuple[str, ...] = ()
    patterns: tuple[str, ...] | None = None
    reads: tuple[str, ...] = ()


class Parsed(_Wire, frozen=True):
    """The result of parsing a file.

    Attributes:
        dags: The valid DAGs.
        failures: Errors. After a syntax error there are no DAGs at all.
        modules: Local files it imported, relative to the DAG folder, including the file itself.
        wanted: See ``Named``.
        triggers: The local trigger classes it may use, by class path, each with a digest of the
            code on which it depends.
        odd: Valid code that is probably a mistake.
        beside: Other files that it uses.
    """

    dags: tuple[DagSpec, ...]
    failures: tuple[DagFailure, ...]
    modules: tuple[str, ...]
    triggers: dict[str, str] = {}
    odd: tuple[DagFailure, ...] = ()
    wanted: tuple[str, ...] = ()
    beside: Beside = Beside()


class Named(_Wire, frozen=True):
    """The names in a file's source, read before it is imported.

    Attributes:
        modules: As in ``Parsed``.
        wanted: Targets of imports that do not exist yet: paths in the DAG folder, without the
            suffix.
    """

    modules: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


class ParserDied(_Wire, frozen=True):
    """The report that a parser process ended before it had a result.

    Attributes:
        status: As in ``subprocess``: negative for a signal. The error number, if it could not be
            started.
        last_words: The end of its output.
        limit: The exceeded limit for which it was killed; empty if it died by itself; ``NO_ROOM``
            if it could not be started.
        named: The names in the file known by then.
    """

    status: int
    last_words: bytes
    limit: str = ""
    message: str = ""
    named: Named = Named()


class TriggerKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trigger class of a plug-in.

    Attributes:
        summary: The first line of its docstring, if it has one.
        public_fields: Names of the fields that viewers may read.
    """

    class_path: str
    summary: str
    public_fields: tuple[str, ...] = ()


class Inspected(_Wire, frozen=True):
    """The result of inspecting a plug-in, or its failure."""

    kinds: tuple[TriggerKind, ...]
    failure: DagFailure | None = None
