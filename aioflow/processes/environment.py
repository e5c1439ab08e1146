"""The part of the daemon's environment that children inherit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from aioflow.worker.withheld_variables import WITHHELD

__all__ = ("MARK", "NAMES_ALLOWED", "child_environment", "foreign_environment")

MARK = "AIOFLOW_CHILD_OF"
"""Variable with the mark ``<home id>:<nonce>``. A child and everything it starts have it."""

NAMES_ALLOWED = "AIOFLOW_CHILD_ENV"
"""Variable with names of variables that children inherit, separated by commas.

These are added to the names in the setting ``children.env``.
"""

_OURS = "AIOFLOW_"
_NAMES = frozenset({"HOME", "LANG", "LANGUAGE", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})
_PREFIXES = ("LC_", "PYTHON")

_PROXIES = frozenset({"ALL_PROXY", "FTP_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
"""Proxy variables, in upper or lower case. Clients behind a proxy need them to connect."""

_CERTIFICATES = frozenset({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"})


def child_environment(source: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of ``source`` that a child inherits.

    The daemon's own settings are never inherited, even if the user names them, because they contain
    database URLs, keys and tokens.

    Args:
        allowed: Names of further variables to inherit, or patterns such as ``AWS_*``.
    """
    more = [name.strip() for name in source.get(NAMES_ALLOWED, "").split(",")]
    patterns = (*allowed, *(name for name in more if name))
    theirs = {name: value for name, value in source.items() if not name.startswith(_OURS)}
    given = {name: value for name, value in theirs.items() if _passes(name, patterns)}
    withheld = sorted(name for name in theirs if name not in given and "," not in name)
    return given | {WITHHELD: ",".join(withheld)} if withheld else given


_OF_AN_INTERPRETER = frozenset({"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"})
"""Variables that point to the packages of one interpreter."""


def foreign_environment(
    given: Mapping[str, str], program: str, root: str, allowed: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables for a child that runs in a different interpreter from the daemon.

    Variables that point to packages of the daemon's own interpreter are left out, unless the user
    names them. The child's own environment comes first in the search for commands that it starts.

    Args:
        given: Variables of a child in the daemon's own interpreter, see ``child_environment``.
        program: Path of the interpreter.
        root: Root of its virtual environment; empty if it is not in one.
        allowed: See ``child_environment``.
    """
    passed = {
        name: value
        for name, value in given.items()
        if name not in _OF_AN_INTERPRETER or any(fnmatchcase(name, one) for one in allowed)
    }
    folder = os.path.dirname(program)  # noqa: PTH120 - as written, without resolving links
    passed["PATH"] = os.pathsep.join(filter(None, (folder, passed.get("PATH", os.defpath))))
    return passed | {"VIRTUAL_ENV": root} if root else passed


def _passes(name: str, patterns: Sequence[str]) -> bool:
    if name in _NAMES or name in _CERTIFICATES or name.upper() in _PROXIES:
        return True
    return name.startswith(_PREFIXES) or any(fnmatchcase(name, one) for one in patterns)
