"""What parsers find in DAG files and plug-ins, and report to the daemon."""

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
"""The limit that is the machine's, and says nothing of the file."""


class _Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Crosses the link, see ``protocol.reports``."""


class DagFailure(_Wire, frozen=True):
    """Why a file could not be parsed, or one of its DAGs is wrong."""

    reason: str
    message: str
    line: int = 0


class Beside(_Wire, frozen=True):
    """The files beside its modules that a DAG file uses, relative to the DAG folder.

    Attributes:
        paths: Where expressions built on ``__file__`` lead, also out of the DAG folder, each with
            its line; 0 for one in a module that it imports.
        named: Files and folders that texts of it name, and folders that importing it listed.
        opened: Files that importing it has read, each with its stamp then; empty if there was none.
        written: Files that importing it has written.
        patterns: Those of its line ``# aioflow: files = [...]``; ``None`` without one.
        reads: Patterns of what its DAGs say that they read.
    """

    paths: dict[str, int] = {}
    named: tuple[str, ...] = ()
    opened: dict[str, tuple[int, ...]] = {}
    written: tuple[str, ...] = ()
    patterns: tuple[str, ...] | None = None
    reads: tuple[str, ...] = ()


class Parsed(_Wire, frozen=True):
    """What a parser found in a file.

    Attributes:
        dags: The valid ones.
        failures: What is wrong; with a syntax error there are no DAGs at all.
        modules: Local files it imported, relative to the DAG folder, its own file included.
        wanted: See ``Named``.
        triggers: The local trigger classes it may use, by class path, each with a digest of the
            code it stands on.
        odd: What runs, but is likely not meant.
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
    """What a file names, read from its source before it is imported.

    Attributes:
        modules: As in ``Parsed``.
        wanted: Where its imports lead once something is there: paths in the DAG folder, without
            the suffix.
    """

    modules: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


class ParserDied(_Wire, frozen=True):
    """The process that looked at a file or a plug-in came to an end before it had an answer.

    Attributes:
        status: As of ``subprocess``: negative for a signal. The error's number, if it could
            not be started.
        last_words: The end of its output.
        limit: Which limit it went beyond, and so was killed; empty if it died by itself;
            ``NO_ROOM`` if it could not be started.
        named: What was known of the file by then.
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
    """What a parser found in a plug-in, or why it found nothing."""

    kinds: tuple[TriggerKind, ...]
    failure: DagFailure | None = None
