"""The status page: what there is, what runs, what waits. No script, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from aioflow.api.views import DagView, RunSummary, TriggerView

__all__ = ("STYLE_HASH", "render")

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; --good: #2a8a4a; --bad: #c8372d;
  --busy: #2b6cb0; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; }
.soft, .cancelled, .queued { color: var(--soft); } .success { color: var(--good); }
.failed, .partial, .error { color: var(--bad); } .running { color: var(--busy); }
progress { width: 8rem; }
"""

STYLE_HASH = "sha256-" + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
"""Names the one style that pages may have, for their content security policy."""

_REFRESH_SECONDS = 5
_NO_VALUE = "–"
_WAITING = ("sensing", "deferred", "retrying")
_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "cancelled", "removed"})


def render(
    dags: Sequence[DagView],
    runs: Sequence[tuple[RunSummary, dict[str, int]]],
    triggers: Sequence[TriggerView],
    *,
    parked: int,
    is_store_away: bool,
) -> str:
    """Return the page as of now.

    Args:
        dags: All of them.
        runs: The newest, each with its tasks by state.
        triggers: Some of those that are parked.
        parked: How many are in all.
        is_store_away: Whether the database does not answer.
    """
    away = '<p class="error">The database does not answer; nothing moves.</p>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>aioflow</title>'
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><h1>aioflow</h1>"
        f"{away if is_store_away else ''}"
        f"{_dags(dags)}{_runs(runs)}{_triggers(triggers, parked)}"
        "</body></html>"
    )


def _dags(dags: Sequence[DagView]) -> str:
    rows = (
        [
            _cell(dag.dag_id or _NO_VALUE),
            _cell(dag.schedule or _NO_VALUE),
            _cell("paused" if dag.paused else dag.next_run_at or _NO_VALUE),
            _cell(dag.file, "soft"),
            _cell(dag.import_error or "", "error"),
        ]
        for dag in dags
    )
    empty = "No DAGs yet: put a file into the DAG folder."
    return _table("DAGs", ("DAG", "Schedule", "Next run", "File", "Problem"), rows, empty)


def _runs(runs: Sequence[tuple[RunSummary, dict[str, int]]]) -> str:
    rows = (
        [
            _cell(run.run_id),
            _cell(run.state, run.state),
            _progress(counts),
            _cell(run.started_at or _NO_VALUE),
            _cell(run.ended_at or _NO_VALUE),
        ]
        for run, counts in runs
    )
    empty = "No runs yet: aioflow dags trigger DAG"
    return _table("Recent runs", ("Run", "State", "Tasks", "Started", "Ended"), rows, empty)


def _progress(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    ended = sum(count for state, count in counts.items() if state in _ENDED)
    failed = counts.get("failed", 0)
    bar = f'<progress max="{max(total, 1)}" value="{ended}"></progress> {ended} of {total}'
    waiting = [f"{counts[state]} {state}" for state in _WAITING if counts.get(state)]
    bar += f'<br><span class="soft">{", ".join(waiting)}</span>' if waiting else ""
    return bar + (f'<br><span class="failed">{failed} failed</span>' if failed else "")


def _triggers(triggers: Sequence[TriggerView], parked: int) -> str:
    rows = (
        [
            _cell(_task_name(trigger)),
            _cell(trigger.kind),
            _cell(trigger.detail, "soft"),
            _cell(trigger.since),
            _cell(trigger.deadline or _NO_VALUE),
        ]
        for trigger in triggers
    )
    title = f"Parked triggers: {parked}" if parked else "Parked triggers"
    return _table(title, ("Task", "Kind", "For", "Since", "Until"), rows, "None.")


def _task_name(trigger: TriggerView) -> str:
    index = "" if trigger.map_index < 0 else f"[{trigger.map_index}]"
    index += f", round {trigger.round}" if trigger.round else ""
    if trigger.run_id is None:
        return f"DAG {trigger.dag_id}"
    return f"{trigger.run_id} {trigger.task_id}{index}"


def _table(title: str, heads: Sequence[str], rows: Iterable[list[str]], empty: str) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    if not body:
        return f'<h2>{escape(title)}</h2><p class="soft">{escape(empty)}</p>'
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(text: str, style: str = "") -> str:
    safe = escape(text)
    return f'<span class="{escape(style)}">{safe}</span>' if style else safe
