"""Links to the web page, which commands print on a terminal."""

from __future__ import annotations

import argparse

from aioflow.cli.client import Refused, connect
from aioflow.cli.output import hint, on_terminal
from aioflow.errors import DaemonAway
from aioflow.model.page_links import task_page

__all__ = ("show_run_link",)


def show_run_link(
    arguments: argparse.Namespace, run_id: str, task: str | None = None, map_index: int = -1
) -> None:
    """Print the address of a run, or of a task of it, if standard output is a terminal.

    Nothing is printed without a daemon: there is no page then.
    """
    if arguments.json or not on_terminal():
        return
    try:
        base = connect(arguments).get("me").get("page_url") or arguments.url
    except (DaemonAway, Refused):
        return
    if base:
        hint(f"on the page: {task_page(base.rstrip('/'), run_id, task or '', map_index)}")
