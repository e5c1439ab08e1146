"""The part of the daemon's environment that children inherit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from aioflow.worker.withheld_variables import WITHHELD

__all__ = ("MARK", "NAMES_ALLOWED", "child_environment")

MARK = "AIOFLOW_CHILD_OF"
"""Set in every child and inherited by everything it starts: ``<home id>:<nonce>``."""

NAMES_ALLOWED = "AIOFLOW_CHILD_ENV"
"""Variable with further names to inherit, besides those of the setting ``children.env``, separated
by commas."""

_OURS = "AIOFLOW_"
_NAMES = frozenset({"HOME", "LANG", "LANGUAGE", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})
_PREFIXES = ("LC_", "PYTHON")

_PROXIES = frozenset({"ALL_PROXY", "FTP_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
"""Clients read them in both cases, and behind a proxy cannot connect without them."""

_CERTIFICATES = frozenset({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"})


def child_environment(source: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of ``source`` that a child inherits.

    The daemon's own settings are never inherited, not even if the user names them: they contain
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


def _passes(name: str, patterns: Sequence[str]) -> bool:
    if name in _NAMES or name in _CERTIFICATES or name.upper() in _PROXIES:
        return True
    return name.startswith(_PREFIXES) or any(fnmatchcase(name, one) for one in patterns)
