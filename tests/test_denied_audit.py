"""Denied requests in the audit: the first at once, then counted, so that no flood hides a user."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.api.access.audit import DENIAL_KINDS, DENIAL_SECONDS, DeniedRequests
from aioflow.model.access import AuditEntry

STRANGER = AuditEntry(
    actor="",
    role="",
    action="GET",
    target="/api/v1/runs",
    address="10.0.0.1",
    is_refused=True,
    code="web.unauthorized",
)
ANNA = replace(STRANGER, actor="anna", role="viewer", action="POST", code="request.forbidden")


def told(refusals, now, **more):
    return [(line.target, line.after) for line in refusals.take(now, **more)]


def test_the_first_is_reported_at_once_and_the_others_are_counted_for_ten_minutes():
    refusals = DeniedRequests()
    found = {}
    for second in range(3_600):
        refusals.add(STRANGER, float(second))
        for line in refusals.take(float(second)):
            found[second] = line.after

    assert found[0] is None
    assert found[600] == "600 more in 600 s"
    assert found[601] is None
    assert len(found) == 2 * 6 - 1


def test_refused_reads_of_strangers_are_counted_regardless_of_their_target():
    refusals = DeniedRequests()
    for path in ("/a", "/b", "/c"):
        refusals.add(replace(STRANGER, target=path), 0.0)
        refusals.add(replace(STRANGER, target=path, action="POST"), 0.0)
        refusals.add(replace(ANNA, target=path, action="GET"), 0.0)
    at_once = told(refusals, 0.0)
    later = told(refusals, DENIAL_SECONDS)

    assert sorted(at_once) == sorted([("/a", None), *[(p, None) for p in ("/a", "/b", "/c")] * 2])
    assert later == [("/c", "2 more in 600 s")]


def test_differences_are_distinguished():
    refusals = DeniedRequests()
    lines = [
        STRANGER,
        replace(STRANGER, address="10.0.0.2"),
        replace(STRANGER, code="web.host"),
        replace(STRANGER, action="HEAD"),
        ANNA,
        replace(ANNA, actor="bob"),
    ]
    for line in lines:
        refusals.add(line, 0.0)

    assert refusals.take(0.0) == lines


def test_after_its_end_nothing_is_left_to_report():
    refusals = DeniedRequests()
    refusals.add(STRANGER, 0.0)
    refusals.add(STRANGER, 1.0)

    assert told(refusals, 1.0) == [("/api/v1/runs", None)]
    assert not refusals.is_empty
    assert told(refusals, 599.9) == []
    assert told(refusals, 600.0) == [("/api/v1/runs", "1 more in 600 s")]
    assert told(refusals, 1_200.0) == []
    assert refusals.is_empty


def test_very_many_kinds_are_only_counted_and_hide_no_known_one():
    refusals = DeniedRequests()
    lines = []
    for number in range(5_000):
        now = number / 100
        refusals.add(replace(STRANGER, action="POST", target=f"/{number}"), now)
        lines += refusals.take(now)
    refusals.add(ANNA, 50.0)
    lines += refusals.take(50.0)
    early = len(lines)
    lines += refusals.take(DENIAL_SECONDS)

    assert early == DENIAL_KINDS + 1
    assert ANNA in lines
    assert [line.target for line in lines if line.code == "audit.left_out"] == [
        f"{5_000 - DENIAL_KINDS} more of unknown callers"
    ]


def test_after_a_flood_of_kinds_new_ones_are_reported_again():
    refusals = DeniedRequests()
    for number in range(5_000):
        refusals.add(replace(STRANGER, action="POST", target=f"/{number}"), 0.0)
    refusals.take(DENIAL_SECONDS)
    refusals.add(STRANGER, DENIAL_SECONDS + 1)

    assert told(refusals, DENIAL_SECONDS + 1) == [("/api/v1/runs", None)]


def test_however_long_the_database_is_away_what_waits_is_bounded_and_counted():
    refusals = DeniedRequests()
    for number in range(50_000):
        refusals.add(replace(ANNA, target=f"/{number}"), number * 2.0)
    lines = refusals.take(100_000.0, is_last=True)

    assert len(lines) == DENIAL_KINDS + 1
    assert lines[-1].target == f"{50_000 - DENIAL_KINDS} more of known callers"


def test_lost_entries_are_counted():
    refusals = DeniedRequests()
    refusals.add(STRANGER, 0.0)
    refusals.add(ANNA, 0.0)
    refusals.lose(refusals.take(0.0), 0.0)
    assert not refusals.is_empty

    assert [target for target, _ in told(refusals, 1.0, is_last=True)] == [
        "1 more of unknown callers",
        "1 more of known callers",
    ]


def test_at_the_end_all_of_it_is_reported():
    refusals = DeniedRequests()
    for _ in range(3):
        refusals.add(STRANGER, 10.0)

    assert told(refusals, 25.0, is_last=True) == [
        ("/api/v1/runs", None),
        ("/api/v1/runs", "2 more in 15 s"),
    ]
