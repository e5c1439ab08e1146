"""Routes for the home page, and for the history: ends and durations by hour or day."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from aioflow.api import instant
from aioflow.api.page.history import Span, Step
from aioflow.api.page.home import NAMED, home
from aioflow.api.past_fire_times import fire_days, past_fire_times
from aioflow.web.permissions import Acting, viewer
from aioflow.web.routing import Json, NodeApi, api_router

__all__ = ("router",)

router = api_router()

_From = Annotated[str | None, Query(alias="from", max_length=60)]
_To = Annotated[str | None, Query(alias="to", max_length=60)]
_Zone = Annotated[str | None, Query(max_length=60)]


def _span(api: NodeApi, since: str | None, until: str | None, step: Step, zone: str | None) -> Span:
    first = None if since is None else instant(since, "from")
    last = None if until is None else instant(until, "to")
    return api.history.span(first, last, step, zone)


@router.get("/home", dependencies=[viewer()])
async def show_home(api: NodeApi, acting: Acting) -> Response:
    """List the runs in flight, and what needs attention: failures, decisions, broken files."""
    asked = await acting.decisions.page(limit=NAMED)
    broken = await api.reads.import_errors()
    found = await home(
        api,
        api.history,
        api.clock,
        pools=await api.list_pools(),
        decisions=asked.items,
        import_errors=broken[:NAMED],
    )
    return Json(found)


@router.get("/history/runs", dependencies=[viewer()])
async def history_of_runs(
    api: NodeApi, since: _From = None, until: _To = None, step: Step = "hour", zone: _Zone = None
) -> Response:
    """Count the runs of all DAGs that ended in a period, by final state and by hour or day."""
    return Json(await api.history.runs(_span(api, since, until, step, zone)))


@router.get("/history/dags", dependencies=[viewer()])
async def history_of_dags(api: NodeApi, since: _From = None, until: _To = None) -> Response:
    """List the DAGs whose runs ended in a period, with ends, failure rate and durations of each."""
    return Json(await api.history.dags(_span(api, since, until, "day", None)))


@router.get("/history/usual", dependencies=[viewer()])
async def usual_durations(api: NodeApi) -> Response:
    """List the durations above which runs are slower than usual, by DAG."""
    return Json(await api.history.usual())


@router.get("/history/timeline", dependencies=[viewer()])
async def history_timeline(api: NodeApi, since: _From = None, until: _To = None) -> Response:
    """List the runs that were active in a period, the latest first."""
    return Json(await api.history.timeline(_span(api, since, until, "hour", None)))


@router.get("/history/schedules", dependencies=[viewer()])
async def history_of_schedules(api: NodeApi, since: _From = None, until: _To = None) -> Response:
    """List the fire times in a period with their runs. Late and missed fire times are marked."""
    span = _span(api, since, until, "hour", None)
    return Json(await past_fire_times(api, span.since, min(span.until, api.clock.now())))


@router.get("/history/dags/{dag_id}", dependencies=[viewer("dag")])
async def history_of_dag(
    api: NodeApi,
    dag_id: str,
    since: _From = None,
    until: _To = None,
    step: Step = "day",
    zone: _Zone = None,
) -> Response:
    """Show ends, failure rate, durations and queue times of a DAG's runs by hour or day."""
    return Json(await api.history.dag(dag_id, _span(api, since, until, step, zone)))


@router.get("/history/dags/{dag_id}/failures", dependencies=[viewer("dag")])
async def history_of_failures(
    api: NodeApi, dag_id: str, since: _From = None, until: _To = None
) -> Response:
    """List the runs of a DAG that ended failed or partial in a period, at most 500."""
    return Json(await api.history.failures(dag_id, _span(api, since, until, "day", None)))


@router.get("/history/dags/{dag_id}/schedule", dependencies=[viewer("dag")])
async def history_of_schedule(
    api: NodeApi, dag_id: str, since: _From = None, until: _To = None, zone: _Zone = None
) -> Response:
    """Count a DAG's fire times by day: those that started a run, late ones, and missed ones."""
    span = _span(api, since, until, "day", zone)
    now = api.clock.now()
    return Json(await fire_days(api, dag_id, span._replace(until=min(span.until, now))))


@router.get("/history/dags/{dag_id}/tasks", dependencies=[viewer("dag")])
async def history_of_tasks(
    api: NodeApi, dag_id: str, since: _From = None, until: _To = None
) -> Response:
    """List the tasks of a DAG, with ends, failure rate, durations, queue and wait times of each."""
    return Json(await api.history.tasks(dag_id, _span(api, since, until, "day", None)))
