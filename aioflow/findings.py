"""What parsers find in DAG files and plug-ins, and report to the daemon."""

from __future__ import annotations

import msgspec

from aioflow.model import DagSpec

__all__ = ("NO_ROOM", "DagFailure", "Inspected", "Named", "Parsed", "ParserDied", "TriggerKind")


NO_ROOM = "no_room"
"""The limit that is the machine's, and says nothing of the file."""


class _Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Crosses the link, see ``messages``."""


class DagFailure(_Wire, frozen=True):
    """Why a file could not be parsed, or one of its DAGs is wrong."""

    reason: str
    message: str
    line: int = 0


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
    """

    dags: tuple[DagSpec, ...]
    failures: tuple[DagFailure, ...]
    modules: tuple[str, ...]
    triggers: dict[str, str] = {}
    odd: tuple[DagFailure, ...] = ()
    wanted: tuple[str, ...] = ()


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
