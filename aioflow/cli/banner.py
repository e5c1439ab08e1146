"""What a daemon says of itself when it is up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aioflow.daemon import Ready

__all__ = ("banner_facts", "banner_lines")


def banner_facts(ready: Ready) -> dict[str, Any]:
    """Return it for machines."""
    return {
        "url": ready.url,
        "home": str(ready.home),
        "store": ready.store,
        "dags": [str(folder) for folder in ready.dags],
        "pid": ready.pid,
    }


def banner_lines(ready: Ready) -> str:
    """Return it for people: where the page is, what it serves, how to stop it."""
    return "\n".join(
        (
            f"aioflow is up: {ready.url}",
            f"  DAGs   {', '.join(map(_folder, ready.dags))}",
            f"  store  {ready.store}",
            f"  home   {ready.home}",
            f"  stop   Ctrl-C, or: kill {ready.pid}",
        )
    )


def _folder(path: Path) -> str:
    return str(path) if path.is_dir() else f"{path} (there is none yet)"
