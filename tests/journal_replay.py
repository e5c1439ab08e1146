"""A replay of the journal, and its comparison with the tables, by which tests check a database.

The replay checks each change as the database did: a required row exists, has the values that the
change expects, and moves only as ``core.transitions`` allows. Blobs are compared by size and
CRC-32.

If old journal rows were deleted, the remaining ones are replayed. A row whose first remaining
change is an update is assumed to have the values that the change expects, and only its known
columns are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import LargeBinary, Table

from aioflow.core.transitions import is_legal
from aioflow.model.batch import JournalRow
from aioflow.model.history import OF_RUN, Measure, hour_of
from aioflow.model.ids import TaskNo
from aioflow.model.states import RunState, TaskState
from aioflow.store import Store, tables
from aioflow.store.changes import KINDS, Action, Kind
from aioflow.store.journal import Entry, decode, digest
from tests.net_changes import net_is_reachable, net_is_reachable_run

__all__ = ("REPLAYED", "Replay", "compare_with_replay")

_End: TypeAlias = tuple[str, bool, int, int]
"""DAG, whether a run or a task has ended, hour, and final state."""

_Key: TypeAlias = tuple[Any, ...]
_Row: TypeAlias = dict[str, Any]

REPLAYED: tuple[Table, ...] = tuple(
    dict.fromkeys(
        kind.table for kind in KINDS if kind.table not in {tables.journal, tables.history}
    )
)
"""The tables whose content follows from the journal. The history is recounted instead."""

_ADDED_LATER: Mapping[str, _Row] = {
    "new expansion": {"is_open": 0},
    "new trigger": {"ordinal": -1, "branch": 0, "window": 0, "failure": None, "timeout_method": ""},
    "new run": {"caller": None, "backfill": None},
    "backfill": {"key": None},
    "dag": {"last_fire_time": None, "late_alert_for": None},
}
"""Columns that a later schema added to the end of a table, with their values for older rows."""

_KIND_BY_NAME = {kind.name: kind for kind in KINDS}
_SHOWN = 100  # maximum number of differences per table


async def compare_with_replay(store: Store) -> list[str]:
    """Return the differences between the tables and a replay of the journal.

    Both are read in the same committed state and held in memory, so this is for checks, not for
    daily use. If old journal rows were deleted, only rows that the remaining ones mention are
    compared.
    """
    scanned = [tables.journal, tables.node, tables.history, *REPLAYED]
    journal, node, history, *stored = await store.scan(scanned)
    told = [row for row in map(_journal_row, journal) if row is not None]
    replay = Replay(told)
    for row in told:
        replay.apply(row)
    replay.check_beginning()
    differences = replay.faults
    if len(told) < len(journal):
        differences.append(f"{len(journal) - len(told)} rows of the journal cannot be read")
    for node_no, _, commit_no, *_ in node:
        journaled = replay.commit_nos.get(node_no, 0)
        # If a node has been idle for a long time, all of its journal rows may have been deleted by
        # age.
        if commit_no != journaled and (journaled or replay.is_whole):
            differences.append(
                f"node {node_no} stands at commit {commit_no}, its journal at {journaled}"
            )
    for table, rows in zip(REPLAYED, stored, strict=True):
        differences.extend(_table_differences(table, replay, rows))
    differences.extend(_history_differences(replay, history))
    return differences


def _journal_row(values: Sequence[Any]) -> JournalRow | None:
    """Return a row of the journal, or ``None`` if it is damaged."""
    seq, at, body, node_no, commit_no = values
    if not (isinstance(body, bytes) and all(type(one) is int for one in (seq, node_no, commit_no))):
        return None
    return JournalRow(seq=seq, at=at, body=body, node_no=node_no, commit_no=commit_no)


def _history_differences(replay: Replay, stored: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield where the history differs from the ends that the journal contains."""
    counted = replay.ends
    if counted is None or not replay.is_whole:
        return
    found: Counter[_End] = Counter()
    for dag_id, task_id, measure, start, bucket, occurrences, _ in stored:
        if measure == Measure.STATE:
            end = (dag_id, task_id == OF_RUN, start, bucket)
            if not isinstance(occurrences, int):
                yield f"history {end} has {occurrences!r} occurrences"
                continue
            found[end] += occurrences
    for key in _in_order(counted.keys() | found.keys()):
        if counted[key] != found[key]:
            yield f"history {key} is {found[key]}, but {counted[key]} ended"


class Replay:
    """The tables according to the journal.

    Args:
        journal: The rows that will be applied.

    Attributes:
        commit_nos: Number of the last applied row of each node.
        is_whole: Whether the journal begins with the very first commit of each node.
        ends: Ends of runs and tasks; ``None`` once a part of the history was deleted by age.
        faults: Violations found. The replay continues as well as it can.
    """

    def __init__(self, journal: Sequence[JournalRow] = ()) -> None:
        self.commit_nos: dict[int, int] = {}
        for row in journal:
            self.commit_nos.setdefault(row.node_no, row.commit_no - 1)
        self.is_whole = not any(self.commit_nos.values())
        self._row = JournalRow(seq=0, at=0, body=b"")
        self.faults: list[str] = []
        self.ends: Counter[_End] | None = Counter()
        self._at = 0
        self._gone_until = 0
        self._first = journal[0].seq if journal else 1
        self._tables: defaultdict[str, dict[_Key, _Row]] = defaultdict(dict)
        self._gone: defaultdict[str, set[_Key]] = defaultdict(set)

    def rows(self, table: Table) -> Mapping[_Key, _Row]:
        """Return the rows of a table by key, with digests for blobs.

        If the replay is not whole, some columns may be missing.
        """
        return self._tables[table.name]

    def gone(self, table: Table) -> set[_Key]:
        """Return the keys of deleted rows, or an empty set if the replay is whole."""
        return self._gone[table.name]

    def check_beginning(self) -> None:
        """Check that the journal begins after the rows that it records as deleted."""
        before = 0 if self.is_whole else self._first - 1
        if before != self._gone_until:
            told = f"its entries until {self._gone_until} were deleted"
            self.faults.append(f"the journal begins with {self._first}, but {told}")

    def apply(self, row: JournalRow) -> None:
        """Apply the next row of the journal."""
        before = self.commit_nos.get(row.node_no, 0)
        if row.seq <= self._row.seq or row.commit_no != before + 1:
            self._fault(f"the journal of node {row.node_no} continues with {row.commit_no}")
        self._row = row
        self.commit_nos[row.node_no] = row.commit_no
        try:
            entry = decode(row.body)
        except ValueError as exc:
            self._fault(str(exc))
            return
        self._at = row.at
        walked = self._walk(entry)
        for name, changes in entry.changes.items():
            kind = _KIND_BY_NAME.get(name)
            if kind is None:
                self._fault(f"unknown kind of change {name!r}")
                continue
            for values in changes:
                self._change(kind, values, walked)

    def _walk(self, entry: Entry) -> dict[TaskNo, TaskState]:
        """Check each step of each task. Return the last state of each task."""
        known = self._tables[tables.task.name]
        reached: dict[TaskNo, TaskState] = {}
        for task_no, state in entry.steps:
            was = reached.get(task_no)
            if was is None:
                row = known.get((task_no,))
                if row is None and not self.is_whole:
                    reached[task_no] = state
                    continue
                was = TaskState.PENDING if row is None else TaskState(row["state"])
            if not is_legal(was, state):
                self._fault(f"task {task_no} steps from {was.label} to {state.label}")
            reached[task_no] = state
        return reached

    def _change(
        self, kind: Kind, values: Sequence[Any], walked: Mapping[TaskNo, TaskState]
    ) -> None:
        new = dict(zip(kind.columns, map(_plain, values), strict=False))
        if not kind.guards:
            new = {**_ADDED_LATER.get(kind.name, {}), **new}
        guards = dict(zip(kind.guards, values[len(kind.columns) :], strict=True))
        if kind.table is tables.history:
            self._history_gone(guards)
            return
        if kind.table is tables.journal:
            self._gone_until = max(self._gone_until, guards["seq"])
            return
        rows = self._tables[kind.table.name]
        if guards and len(guards) < len(kind.key):  # all rows whose keys begin with these values
            for key in [key for key in rows if key[: len(guards)] == tuple(guards.values())]:
                del rows[key]
            return
        key = tuple((guards or new)[name] for name in kind.key)
        found = rows.get(key)
        where = f"{kind.name} {key}"
        if kind.action is Action.INSERT and found is not None:
            self._fault(f"{where}: the row was there already")
        if found is None and self._is_older(kind, key):
            found = rows[key] = guards or _key_alone(kind, new)
        if kind.action in {Action.UPDATE, Action.DELETE}:
            if found is None:
                self._fault(f"{where}: there was no such row")
                return
            odd = {n: found[n] for n, was in guards.items() if n in found and found[n] != was}
            if odd:
                self._fault(f"{where}: expected {guards}, found {odd}")
        self._check_move(kind, key, found, new, walked)
        self._count_end(kind, found, new)
        _put(rows, kind.action, key, new)
        if not self.is_whole:
            self._note_gone(kind, key)

    def _history_gone(self, key: _Row) -> None:
        if len(key) > 1 or self.ends is None:
            self.ends = None
            return
        for end in [end for end in self.ends if end[0] == key["dag_id"]]:
            del self.ends[end]

    def _count_end(self, kind: Kind, found: _Row | None, new: _Row) -> None:
        """Count the end of a run or task, as the history should."""
        if self.ends is None or not self.is_whole or "state" not in new:
            return
        row = {**(found or {}), **new}
        if kind.table is tables.run:
            was = None if found is None else found["ended_at"]
            if row["ended_at"] is not None and was is None:
                self.ends[row["dag_id"], True, hour_of(row["ended_at"]), row["state"]] += 1
        elif kind.table is tables.task:
            was = TaskState.PENDING if found is None else TaskState(found["state"])
            state = TaskState(row["state"])
            if was.is_live and not state.is_live and state is not TaskState.REMOVED:
                run = self._tables[tables.run.name].get((row["run_no"],))
                if run is None:
                    self._fault(f"a task of run {row['run_no']} ended: there was no such run")
                    return
                ended_at = self._at if row["ended_at"] is None else row["ended_at"]
                self.ends[run["dag_id"], False, hour_of(ended_at), int(state)] += 1

    def _is_older(self, kind: Kind, key: _Key) -> bool:
        """Return whether the first remaining change of a row depends on deleted journal rows."""
        if self.is_whole or key in self._gone[kind.table.name]:
            return False
        return kind.action in {Action.UPDATE, Action.AMEND, Action.DELETE, Action.KEEP}

    def _note_gone(self, kind: Kind, key: _Key) -> None:
        gone = self._gone[kind.table.name]
        if kind.action in {Action.DELETE, Action.DISCARD}:
            gone.add(key)
        else:
            gone.discard(key)

    def _check_move(
        self,
        kind: Kind,
        key: _Key,
        found: _Row | None,
        new: _Row,
        walked: Mapping[TaskNo, TaskState],
    ) -> None:
        if "state" not in new:
            return
        if kind.table is tables.task:
            was = TaskState.PENDING if found is None else TaskState(found["state"])
            state = TaskState(new["state"])
            if walked.get(key[0], state) is not state:
                self._fault(f"task {key[0]} stepped to {walked[key[0]].label}, not {state.label}")
            elif key[0] not in walked and not net_is_reachable(was, state):
                self._fault(f"task {key[0]} moves from {was.label} to {state.label}")
        elif kind.table is tables.run and found is not None:
            before, after = RunState(found["state"]), RunState(new["state"])
            # A cancelled run ends only when the last of its tasks has been stopped.
            is_ending = before is after and found.get("ended_at") is None
            if not is_ending and not net_is_reachable_run(before, after):
                self._fault(f"run {key[0]} moves from {before.label} to {after.label}")

    def _fault(self, what: str) -> None:
        node = "" if self._row.node_no == 1 else f"{self._row.node_no}:"
        self.faults.append(f"commit {node}{self._row.commit_no}: {what}")


def _key_alone(kind: Kind, new: _Row) -> _Row:
    return {name: new[name] for name in kind.key}


def _put(rows: dict[_Key, _Row], action: Action, key: _Key, new: _Row) -> None:
    match action:
        case Action.INSERT | Action.REPLACE:
            rows[key] = new
        case Action.KEEP:
            rows.setdefault(key, new)
        case Action.UPDATE:
            rows[key].update(new)
        case Action.AMEND:
            rows.get(key, {}).update(new)
        case Action.DELETE | Action.DISCARD:
            rows.pop(key, None)
        case Action.ADD:
            raise AssertionError("the journal contains no additions")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # a digest


def _table_differences(table: Table, replay: Replay, stored: Sequence[Sequence[Any]]) -> list[str]:
    names = tuple(table.c.keys())
    shorten = _shortener(table)
    key_columns = [column.name for column in table.primary_key]
    rows = {}
    for values in stored:
        row = shorten(dict(zip(names, values, strict=True)))
        rows[tuple(row[name] for name in key_columns)] = row
    if not replay.is_whole:
        rows = {key: row for key, row in rows.items() if _is_mentioned(table, key, replay)}
    differences = list(_row_differences(table.name, replay.rows(table), rows))
    if len(differences) > _SHOWN:
        more = len(differences) - _SHOWN
        differences[_SHOWN:] = [f"{table.name}: {more} more rows differ"]
    return differences


def _is_mentioned(table: Table, key: _Key, replay: Replay) -> bool:
    """Return whether the remaining journal mentions a row."""
    return key in replay.rows(table) or key in replay.gone(table)


def _row_differences(
    name: str, replayed: Mapping[_Key, _Row], stored: Mapping[_Key, _Row]
) -> Iterator[str]:
    for key in _in_order(replayed.keys() - stored.keys()):
        yield f"{name} {key} is in the journal, but not stored"
    for key in _in_order(stored.keys() - replayed.keys()):
        yield f"{name} {key} is stored, but not in the journal"
    for key in _in_order(replayed.keys() & stored.keys()):
        expected, found = replayed[key], stored[key]
        if any(found[column] != expected[column] for column in expected):
            odd = {
                column: found[column] for column in expected if found[column] != expected[column]
            }
            yield f"{name} {key} is not as the journal says: {odd}"


def _in_order(keys: Iterable[_Key]) -> list[_Key]:
    """Return the keys, sorted if possible: a key of a damaged row may not be comparable."""
    found = list(keys)
    try:
        return sorted(found)
    except TypeError:
        return sorted(found, key=repr)


def _shortener(table: Table) -> Callable[[_Row], _Row]:
    blobs = [
        column.name
        for column in table.c
        if isinstance(column.type, LargeBinary) and column.name != "failure"
    ]

    def shorten(row: _Row) -> _Row:
        for name in blobs:
            if isinstance(row[name], bytes):
                row[name] = digest(row[name])
        return row

    return shorten
