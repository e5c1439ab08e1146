"""Links to the web UI's pages for runs, their tasks, and DAGs, for messages and commands."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

__all__ = ("dag_page", "run_page", "task_page")

_CHILD = re.compile(r"(?P<task>.+)\[(?P<map>[0-9]+)\]")


def dag_page(base: str, dag_id: str) -> str:
    """Return the address of a DAG's page; empty if the address of the web UI is not known.

    Args:
        base: The address of the web UI, without a slash at its end.
    """
    return f"{base}/dags/{quote(dag_id, safe='')}" if base else ""


def run_page(base: str, run_id: str) -> str:
    """Return the address of a run's page; see ``dag_page``."""
    return f"{base}/runs/{quote(run_id, safe='')}" if base else ""


def task_page(base: str, run_id: str, task: str, map_index: int = -1) -> str:
    """Return the address of the page of a task in a run, or of the run's page if no task is given.

    Args:
        task: The task id, or the name of a child: ``load[3]``.
    """
    child = _CHILD.fullmatch(task)
    if child is not None and map_index < 0:
        task, map_index = child["task"], int(child["map"])
    named: dict[str, object] = {"task": task} if task else {}
    if task and map_index >= 0:
        named["map"] = map_index
    found = run_page(base, run_id)
    return f"{found}?{urlencode(named)}" if found and named else found
