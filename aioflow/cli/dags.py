"""``aioflow dags``: list, check, test, trigger and pause DAGs."""

from __future__ import annotations

import argparse
from typing import Any

from aioflow.cli.arguments import (
    Nouns,
    add_command,
    add_group,
    complete_paths,
    conf,
    moment,
    positive,
)
from aioflow.cli.backfills import add_start
from aioflow.cli.client import connect, show_run_link
from aioflow.cli.daemon_or_database import read
from aioflow.cli.output import hint, print_json, print_table, safe, safe_text, state

__all__ = ("add_parser",)


def add_parser(nouns: Nouns) -> None:
    """Declare the commands."""
    verbs = add_group(
        nouns,
        "dags",
        text="list, show, check, test, trigger, pause DAGs",
        example='aioflow dags trigger daily --run-id monday --conf \'{"day": "2026-01-05"}\'',
    )
    add_command(verbs, "list", _list, text="list every DAG", example="aioflow dags list")
    show = add_command(
        verbs, "show", _show, text="show a DAG with its tasks", example="aioflow dags show daily"
    )
    show.add_argument("dag", metavar="DAG")
    _add_trigger(verbs)
    add_start(verbs)
    for name, run, text in (
        ("pause", _pause, "start no scheduled runs of a DAG"),
        ("resume", _resume, "start scheduled runs of a DAG again"),
    ):
        parser = add_command(verbs, name, run, text=text, example=f"aioflow dags {name} daily")
        parser.add_argument("dag", metavar="DAG")
    upcoming = add_command(
        verbs,
        "next",
        _next,
        text="list when a DAG's schedule fires next",
        example="aioflow dags next daily --from 2026-01-31T00:00:00Z --count 3",
    )
    upcoming.add_argument("dag", metavar="DAG")
    upcoming.add_argument(
        "--from", dest="after", type=moment, metavar="T", help="after this time, not now"
    )
    upcoming.add_argument("--count", type=positive, default=5, metavar="N")
    stats = add_command(
        verbs,
        "stats",
        _stats,
        text="show how often a DAG fails, and how long it and its tasks take",
        example="aioflow dags stats daily --days 7",
    )
    stats.add_argument("dag", metavar="DAG")
    stats.add_argument("--days", type=positive, default=30, metavar="N", help="of the last N days")
    delete = add_command(
        verbs,
        "delete",
        _delete,
        text="delete a DAG whose file is gone, with its ended runs",
        example="aioflow dags delete daily",
    )
    delete.add_argument("dag", metavar="DAG")
    _add_files(verbs)


def _add_trigger(verbs: Nouns) -> None:
    parser = add_command(
        verbs,
        "trigger",
        _trigger,
        text="start a run",
        example='aioflow dags trigger daily --conf \'{"day": "2026-01-31"}\' --wait',
    )
    parser.add_argument("dag", metavar="DAG")
    parser.add_argument("--conf", type=conf, metavar="JSON", help="its parameters, an object")
    parser.add_argument("--run-id", metavar="ID", help="its name, unique over all DAGs")
    parser.add_argument(
        "--logical-date", type=moment, metavar="T", help="its logical date, ISO 8601"
    )
    parser.add_argument(
        "--key", metavar="K", help="idempotency key: the same key returns the same run"
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="until it ends; exit status 0 for success, 3 for partial, else 1",
    )


def _add_files(verbs: Nouns) -> None:
    check = add_command(
        verbs,
        "check",
        _check,
        text="parse and validate DAG files, without a daemon",
        example="aioflow dags check dags",
        remote=False,
    )
    files = check.add_argument("files", nargs="+", metavar="FILE", help="or a folder of them")
    folder = check.add_argument("--dags", metavar="DIR", help="the DAG folder the files belong to")
    complete_paths(files, "file")
    complete_paths(folder, "directory")
    test = add_command(
        verbs,
        "test",
        _test,
        text="run one DAG of a file to its end, on a daemon of its own",
        example='aioflow dags test dags/daily.py --conf \'{"day": "2026-01-31"}\'',
        remote=False,
    )
    file = test.add_argument("file", metavar="FILE")
    complete_paths(file, "file")
    test.add_argument("--dag", metavar="DAG", help="which, if the file has several")
    test.add_argument("--conf", type=conf, metavar="JSON", help="its parameters, an object")
    folder = test.add_argument("--dags", metavar="DIR", help="the DAG folder the file belongs to")
    complete_paths(folder, "directory")


def _list(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.dags())
    if arguments.json:
        print_json(found)
        return 0
    print_table(
        ("DAG", "SCHEDULE", "NEXT RUN", "FILE", "PROBLEM"),
        (
            (
                dag["dag_id"],
                _zoned(dag),
                "paused" if dag["paused"] else dag["next_run_at"],
                dag["file"],
                dag["import_error"] or "",
            )
            for dag in found
        ),
        empty="no DAGs yet: put a file into the DAG folder",
    )
    return 0


def _zoned(dag: dict[str, Any]) -> str | None:
    """Return the schedule of a DAG, followed by its time zone unless that is UTC."""
    schedule: str | None = dag["schedule"]
    is_plain = schedule is None or dag["timezone"] == "UTC"
    return schedule if is_plain else f"{schedule} ({dag['timezone']})"


def _show(arguments: argparse.Namespace) -> int:
    found = read(arguments, lambda source: source.dag(arguments.dag))
    if arguments.json:
        print_json(found)
        return 0
    for name in (
        "dag_id",
        "file",
        "version",
        "python",
        "schedule",
        "timezone",
        "next_run_at",
        "doc",
    ):
        if found[name]:
            print(safe_text(f"{name}: {found[name]}"))
    for reason in found["isolated"]:
        print(safe_text(f"runs in separate hosts: {reason}"))
    if found["trigger"]:
        waits = found["trigger"]
        print(f"trigger: #{waits['trigger_id']} {safe(waits['detail'])}, {waits['state']}")
        print(f"events: {waits['events']} since {waits['since']}")
    if found["import_error"]:
        hint(f"problem: {found['import_error']}")
    print()
    print_table(
        ("TASK", "RUNS AS", "AFTER", "RULE", "TRIES", "MAPPED"),
        (
            (
                task["task_id"],
                f"{task['body']} sensor" if task["is_sensor"] else task["body"],
                ", ".join(task["parents"]),
                task["trigger_rule"],
                task["max_tries"],
                "yes" if task["is_mapped"] else "",
            )
            for task in found["tasks"]
        ),
        empty="it has no tasks",
    )
    return 0


def _trigger(arguments: argparse.Namespace) -> int:
    client = connect(arguments)
    body = {
        "conf": arguments.conf,
        "run_id": arguments.run_id,
        "logical_date": arguments.logical_date,
        "key": arguments.key,
    }
    made = client.post("dags", arguments.dag, "runs", body=body)
    status = 0
    if arguments.wait:
        show_run_link(arguments, made["run_id"])
        from aioflow.cli.run_progress import run_exit_status, wait_for_run

        hint(f"waiting for run {made['run_id']}")
        made["state"] = wait_for_run(arguments, made["run_id"])
        status = run_exit_status(made["state"])
    if arguments.json:
        print_json(made)
        return status
    if arguments.wait:
        print(f"{made['run_id']} has ended: {state(made['state'])}")
        return status
    verb = "started" if made["created"] else "exists already"
    print(f"{made['run_id']} {verb}: {state(made['state'])}")
    hint(f"follow it: aioflow runs watch {made['run_id']}")
    show_run_link(arguments, made["run_id"])
    return status


def _pause(arguments: argparse.Namespace) -> int:
    return _set_paused(arguments, "pause")


def _resume(arguments: argparse.Namespace) -> int:
    return _set_paused(arguments, "resume")


def _set_paused(arguments: argparse.Namespace, verb: str) -> int:
    answer = connect(arguments).post("dags", arguments.dag, verb)
    if arguments.json:
        print_json(answer)
    else:
        print(f"{arguments.dag} is {'paused' if answer['paused'] else 'not paused'}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    client, runs, more = connect(arguments), 0, True
    while more:
        answer = client.delete("dags", arguments.dag)
        runs, more = runs + answer["runs"], answer["more"]
        if more:
            hint(f"{runs} runs of {arguments.dag} are deleted")
    if arguments.json:
        print_json({"dag_id": arguments.dag, "runs": runs})
    else:
        print(f"{arguments.dag} is deleted, and {runs} runs of it")
    return 0


def _next(arguments: argparse.Namespace) -> int:
    fire_times = read(
        arguments,
        lambda source: source.next_fire_times(arguments.dag, arguments.after, arguments.count),
    )
    if arguments.json:
        print_json(fire_times)
    elif fire_times:
        zone = read(arguments, lambda source: source.dag(arguments.dag))["timezone"]
        print("\n".join(_in_zone(fire_time, zone) for fire_time in fire_times))
    else:
        hint(_why_no_fire_time(arguments))
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    from aioflow.clock import SystemClock
    from aioflow.model.history import DAY_US
    from aioflow.model.timestamps import to_datetime

    client = connect(arguments)
    since = to_datetime(SystemClock().now() - arguments.days * DAY_US).isoformat()
    runs = client.get("history", "dags", arguments.dag, **{"from": since})
    tasks = client.get("history", "dags", arguments.dag, "tasks", **{"from": since})
    if arguments.json:
        print_json({**runs, "tasks": tasks["items"]})
        return 0
    rows = [(arguments.dag, runs["total"]), *((one["task_id"], one) for one in tasks["items"])]
    print_table(
        ("RUNS AND TASKS", "ENDED", "FAILED", "MEDIAN", "P95", "QUEUED", "WAITED"),
        (
            (
                name,
                sum(found["ends"].values()),
                _percent(found["failure_rate"]),
                *(_seconds(found["duration"][part]) for part in ("p50", "p95")),
                _seconds(found["queue"]["p50"]),
                _seconds(found["wait"]["p50"]),
            )
            for name, found in rows
        ),
        empty="nothing has ended",
    )
    if runs["slow_after_seconds"] is not None:
        hint(f"a run is slower than usual after {_seconds(runs['slow_after_seconds'])}")
    return 0


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.0f} s"


def _in_zone(fire_time: str, zone: str) -> str:
    """Return a fire time in UTC, followed by the local time if the DAG's zone is not UTC."""
    from datetime import datetime
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        local = datetime.fromisoformat(fire_time).astimezone(ZoneInfo(zone))
    except (
        ZoneInfoNotFoundError,
        OverflowError,
    ):  # the zone is unknown on this machine, or the local time is in the year 10,000
        return fire_time
    return fire_time if zone == "UTC" else f"{fire_time}  {local.isoformat()} {zone}"


def _why_no_fire_time(arguments: argparse.Namespace) -> str:
    shown = read(arguments, lambda source: source.dag(arguments.dag))
    waits = shown["trigger"]
    if waits is not None and waits["kind"] != "timetable":
        return f"{arguments.dag} runs {shown['schedule']}: not by the clock"
    match shown["schedule"]:
        case None:
            return f"{arguments.dag} has no schedule"
        case "@continuous":
            return f"{arguments.dag} runs again as soon as it has run"
        case schedule:
            return f"the schedule of {arguments.dag} ({schedule}) has ended"


def _check(arguments: argparse.Namespace) -> int:
    from aioflow.cli.offline_parser import check_dags

    return check_dags(arguments)


def _test(arguments: argparse.Namespace) -> int:
    from aioflow.cli.embedded_daemon import test_dag

    return test_dag(arguments)
