"""The banner that a daemon prints when it is ready.

The token is printed on terminals only. Other outputs, such as a journal or the log of a container,
may be stored and read by other users. There the banner names the file that contains the token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from aioflow.daemon.node import Ready

__all__ = ("banner_facts", "banner_lines", "shown_url")


def banner_facts(ready: Ready, stream: TextIO) -> dict[str, Any]:
    """Return the banner as JSON-compatible data.

    Args:
        stream: Where the banner will be printed.
    """
    return {
        "url": shown_url(ready, stream),
        "token_file": str(ready.token_file),
        "home": str(ready.home),
        "store": ready.store,
        "dags": [str(folder) for folder in ready.dags],
        "pid": ready.pid,
    }


def banner_lines(ready: Ready, stream: TextIO) -> str:
    """Return the banner as text: the page's URL, what the daemon serves, and how to stop it.

    Args:
        stream: Where the banner will be printed.
    """
    lines = [
        f"aioflow is up: {shown_url(ready, stream)}",
        f"  DAGs   {', '.join(map(_folder, ready.dags))}",
        f"  store  {ready.store}",
        f"  home   {ready.home}",
        f"  stop   Ctrl-C, or: kill {ready.pid}",
    ]
    if not stream.isatty():
        lines.insert(1, f"  token  in the file {ready.token_file}")
    return "\n".join(lines)


def shown_url(ready: Ready, stream: TextIO) -> str:
    """Return the URL of the page. It contains the token only if ``stream`` is a terminal."""
    return ready.url if stream.isatty() else ready.url.partition("?")[0]


def _folder(path: Path) -> str:
    return str(path) if path.is_dir() else f"{path} (there is none yet)"
