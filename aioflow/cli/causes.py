"""Causes of waits as text, for `aioflow runs why`: the sentences of the daemon, with times.

The daemon words each cause (``api.wait_sentences``), so that the web page says the same. Times are
added here: in UTC and, if it is another one, in the time zone of the DAG.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from aioflow.cli.output import checks_text, hint, safe, state

__all__ = ("show_chain", "time_text", "times_text")

_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "GMT"})
_COMMANDS = 3
"""Maximum number of suggested commands."""


def show_chain(found: Mapping[str, Any]) -> None:
    """Print a chain of causes: one line per cause, indented by depth, and what can be done."""
    if not found["causes"]:
        print(f"{found['run_id']} is {state(found['state'])}; it waits for nothing")
    for cause in found["causes"]:
        other = "" if cause["run_id"] == found["run_id"] else f" (run {cause['run_id']})"
        times = times_text(cause["waiting_on"], found["timezone"])
        text = f"{cause['text']}{other}{f' ({times})' if times else ''}"
        print(f"{'  ' * cause['depth']}{state(cause['state'])}: {safe(text)}")
    if found["more"]:
        hint(f"{found['more']} more")
    commands = dict.fromkeys(one for cause in found["causes"] for one in _commands(cause))
    for command in list(commands)[:_COMMANDS]:
        hint(safe(command))


def times_text(wait: Mapping[str, Any] | None, timezone: str) -> str:
    """Return since when and until when something waits, and its checks; empty if unknown."""
    if wait is None:
        return ""
    parts = [
        f"{word} {time_text(wait[name], timezone)}"
        for word, name in (("since", "since"), ("until", "until"))
        if wait[name]
    ]
    if checks := checks_text(wait):
        parts.append(checks)
    return "; ".join(parts)


def time_text(text: str, timezone: str) -> str:
    """Return a timestamp of JSON in UTC and, if it is another one, in the DAG's time zone."""
    at = datetime.fromisoformat(text).astimezone(UTC)
    shown = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    if timezone in _UTC_NAMES:
        return shown
    own = at.astimezone(ZoneInfo(timezone))
    day = "" if own.date() == at.date() else f"{own:%Y-%m-%d} "
    return f"{shown}, {day}{own:%H:%M:%S} in {timezone}"


def _commands(cause: Mapping[str, Any]) -> Iterator[str]:
    """Yield commands with which a person may end the wait, the most specific one first."""
    wait, target = cause["waiting_on"], cause["target"]
    for action in cause["actions"]:
        if action == "set_pool" and target is not None:
            yield f"more slots: aioflow pools set {target['name']} SLOTS"
        elif action == "fire" and wait is not None and wait["trigger_id"] is not None:
            yield f"send its event: aioflow triggers fire {wait['trigger_id']}"
        elif action == "clear":
            yield f"run it again: aioflow runs clear {cause['run_id']} --task {cause['task_id']}"
