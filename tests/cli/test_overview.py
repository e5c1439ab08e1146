"""The output of ``aioflow top`` for a daemon's metrics."""

from __future__ import annotations

import pytest

from aioflow.cli.overview import Look, as_data, rates, samples

METRICS = r"""# HELP aioflow_live_runs Runs that have not ended.
# TYPE aioflow_live_runs gauge
aioflow_live_runs 3.0
# TYPE aioflow_trigger_events_total counter
aioflow_trigger_events_total{kind="time"} 40.0
aioflow_trigger_events_total{kind="a \"quoted\\ kind\" {}, b"} 2.0
# TYPE aioflow_task_steps_total counter
aioflow_task_steps_total{step="success"} 1.5e+06
# TYPE aioflow_turn_seconds histogram
aioflow_turn_seconds_bucket{le="0.1"} 5.0
aioflow_turn_seconds_bucket{le="+Inf"} 6.0
aioflow_turn_seconds_count 6.0
aioflow_turn_seconds_sum 0.25
# TYPE aioflow_two gauge
aioflow_two{a="x",b="y"} 1.0
# TYPE process_open_fds gauge
process_open_fds 9.0
"""


def test_samples_are_those_of_aioflow_with_at_most_one_label_and_no_buckets():
    assert samples(METRICS) == {
        ("live_runs", ""): 3.0,
        ("trigger_events_total", "time"): 40.0,
        ("trigger_events_total", 'a "quoted\\ kind" {}, b'): 2.0,
        ("task_steps_total", "success"): 1_500_000.0,
        ("turn_seconds_count", ""): 6.0,
        ("turn_seconds_sum", ""): 0.25,
    }


def test_rates_are_per_second_and_never_negative():
    def look(at: float, fired: float, ended: float) -> Look:
        values = {("trigger_events_total", "time"): fired, ("task_steps_total", "success"): ended}
        return Look(at=at, values=values, runs=[], pools=[])

    first = rates(look(10.0, 5.0, 100.0), None)
    second = rates(look(12.0, 9.0, 90.0), first)

    assert as_data(first)["events_per_second"] is None
    assert as_data(second)["events_per_second"] == pytest.approx(2.0)
    assert as_data(second)["tasks_per_second"] == 0.0  # a restarted daemon counts from 0
