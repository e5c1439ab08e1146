"""Filters of runs in the form that clients use, and counts of runs by DAG, state and cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from aioflow.api.queries import RunReader, run_state_of
from aioflow.api.schemas import instant
from aioflow.errors import RequestError
from aioflow.model.run_filter import CAUSES, RunCount, RunFilter
from aioflow.store.run_filters import MAX_DAGS

__all__ = (
    "COUNTED_RUNS",
    "FacetsView",
    "RunQuery",
    "as_text",
    "count_runs",
    "query_of",
    "run_filter",
)

COUNTED_RUNS = 200_000
"""Maximum number of runs that are counted if no index serves the filter; the newest are counted."""

_TEXT_LENGTH = 500
_DAGS_SHOWN = 100
_NO_DAG = ("",)
"""An id that no DAG has, so that a filter with it matches no run."""

Key = TypeVar("Key")


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter in the form that clients use. An empty property matches all runs; see ``RunFilter``.

    Attributes:
        dags, tags: The run's DAG is one of these, and has one of these tags.
        states, causes: The run has one of these states and one of these causes, given by name.
        first, last: The run was created at ``first`` or later, and before ``last``.
    """

    dags: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    first: str | None = None
    last: str | None = None
    search: str = ""
    prefix: str = ""
    params: str = ""


def query_of(named: Mapping[str, Any]) -> RunQuery:
    """Return the filter in the parameters of a request."""
    return RunQuery(
        dags=tuple(named.get("dag") or ()),
        tags=tuple(named.get("tag") or ()),
        states=tuple(named.get("state") or ()),
        causes=tuple(named.get("cause") or ()),
        first=named.get("from"),
        last=named.get("to"),
        search=named.get("search") or "",
        prefix=named.get("prefix") or "",
        params=named.get("params") or "",
    )


class FacetsView(msgspec.Struct, frozen=True, kw_only=True):
    """The number of runs that match a filter.

    Attributes:
        total: Number of runs that match the whole filter.
        states, causes, dags: Number of runs by state, cause and DAG. Each of the three ignores its
            own part of the filter, so that it shows what another choice would find. ``dags``
            contains only the DAGs with the most runs.
        is_complete: Whether all runs were counted, rather than only the newest.
    """

    total: int
    states: dict[str, int]
    causes: dict[str, int]
    dags: dict[str, int]
    is_complete: bool


async def run_filter(reader: RunReader, query: RunQuery) -> RunFilter:
    """Return the filter that a client requests.

    Raises:
        RequestError: If there is no such state or cause, or if the filter is too large.
    """
    for text in (query.search, query.prefix, query.params):
        if len(text) > _TEXT_LENGTH:
            raise RequestError(f"the text of a filter has at most {_TEXT_LENGTH} characters")
    dag_ids = tuple(dict.fromkeys(query.dags))
    if query.tags:
        tagged = await _with_tags(reader, frozenset(query.tags))
        dag_ids = tuple(one for one in tagged if not dag_ids or one in dag_ids) or _NO_DAG
    if len(dag_ids) > MAX_DAGS:
        raise RequestError(f"the filter selects more than {MAX_DAGS} DAGs; name fewer")
    return RunFilter(
        dag_ids=dag_ids,
        states=tuple(run_state_of(name) for name in query.states),
        causes=tuple(_cause(name) for name in query.causes),
        first=None if query.first is None else instant(query.first, "from"),
        last=None if query.last is None else instant(query.last, "to"),
        search=query.search,
        prefix=query.prefix,
        params=query.params,
    )


async def _with_tags(reader: RunReader, tags: frozenset[str]) -> list[str]:
    """Return the DAGs whose current version has one of these tags."""
    known = await reader.catalogue.known()
    declared = await reader.declarations.read(known)
    return [dag_id for dag_id, one in declared.items() if not tags.isdisjoint(one.tags)]


def _cause(name: str) -> str:
    if name not in CAUSES:
        raise RequestError(f"there is no cause {name!r}; there are {', '.join(CAUSES)}")
    return name


async def count_runs(
    reader: RunReader, wanted: RunFilter, scopes: frozenset[str] | None = None
) -> FacetsView:
    """Count the runs that match a filter, by state, cause and DAG.

    Args:
        scopes: The DAGs that the caller may read; ``None`` for all.
    """
    # One query serves all facets. So it omits the properties that facets ignore; they are compared
    # here.
    common = msgspec.structs.replace(wanted, states=(), causes=(), dag_ids=())
    if wanted.dag_ids == _NO_DAG:
        common = wanted
    found = await reader.store.count_matching_runs(common, limit=COUNTED_RUNS)

    def matching(*, ignored: str = "") -> list[RunCount]:
        return [
            one
            for one in found.counts
            if (ignored == "state" or not wanted.states or one.state in wanted.states)
            and (ignored == "cause" or not wanted.causes or one.cause in wanted.causes)
            and (ignored == "dag" or not wanted.dag_ids or one.dag_id in wanted.dag_ids)
        ]

    dags = _sum(
        (one.dag_id, one.count)
        for one in matching(ignored="dag")
        if scopes is None or one.dag_id in scopes
    )
    return FacetsView(
        total=sum(one.count for one in matching()),
        states=dict(_sum((one.state.label, one.count) for one in matching(ignored="state"))),
        causes=dict(_sum((one.cause, one.count) for one in matching(ignored="cause"))),
        dags=dict(dags.most_common(_DAGS_SHOWN)),
        is_complete=found.is_complete,
    )


def _sum(counts: Iterable[tuple[Key, int]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for key, count in counts:
        total[key] += count
    return total


def as_text(query: RunQuery) -> str:
    """Return a filter as one line of text, for the audit."""
    named: dict[str, Sequence[str]] = {
        "dag": query.dags,
        "tag": query.tags,
        "state": query.states,
        "cause": query.causes,
        "from": (query.first or "",),
        "to": (query.last or "",),
        "search": (query.search,),
        "prefix": (query.prefix,),
        "params": (query.params,),
    }
    parts = [f"{name}={value}" for name, values in named.items() for value in values if value]
    return " ".join(parts) or "all runs"
