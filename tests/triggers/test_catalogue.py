"""The catalogue package exports what its modules define, and registers each trigger once."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest

import aioflow_triggers
from aioflow import Operator, Sensor, Trigger
from aioflow.api.trigger_details import CATALOGUE_SENTENCES, PublicFields
from aioflow.author.trigger import class_path, serialize
from aioflow.catalog.plugins import plug_ins
from aioflow.redaction import Masks
from aioflow.worker.parser import inspect_plugin
from tests.differing import differing

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)

WITHOUT_EXTRAS = """
import sys
sys.modules.update(httpx2=None, obstore=None)
import aioflow_triggers
print(*(name for name in sys.modules if name.startswith("aioflow_triggers.")))
from aioflow_triggers import *
print(HttpTrigger.__module__, ObjectTrigger.__module__, FileSensor.__module__)
"""


def defined() -> Iterator[type]:
    """Return the public triggers, sensors and operators, found module by module."""
    for module in pkgutil.iter_modules(aioflow_triggers.__path__, "aioflow_triggers."):
        found = import_module(module.name)
        for name in found.__all__:
            cls = getattr(found, name)
            is_ours = isinstance(cls, type) and cls.__module__ == module.name
            if is_ours and issubclass(cls, Trigger | Sensor | Operator):
                yield cls


def triggers() -> list[type[Trigger[Any]]]:
    """Return the triggers of the catalogue."""
    return [cls for cls in defined() if issubclass(cls, Trigger)]


def test_the_package_offers_every_trigger_sensor_and_operator():
    found = {cls.__name__: cls for cls in defined()}

    assert {name: getattr(aioflow_triggers, name) for name in aioflow_triggers.__all__} == found
    assert set(aioflow_triggers.__all__) <= set(dir(aioflow_triggers))


def test_a_class_keeps_the_path_of_its_module_however_it_is_imported():
    assert (
        class_path(aioflow_triggers.DateTimeTrigger) == "aioflow_triggers.temporal:DateTimeTrigger"
    )
    for name in aioflow_triggers.__all__:
        module, _, path = class_path(getattr(aioflow_triggers, name)).partition(":")
        assert getattr(import_module(module), path) is getattr(aioflow_triggers, name)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'aioflow_triggers' has no attribute 'DateTrigger'"):
        aioflow_triggers.DateTrigger  # type: ignore[attr-defined]  # noqa: B018


def test_each_trigger_is_registered_once():
    ours = [plug_in for plug_in in plug_ins() if plug_in.package == "aioflow-engine"]
    registered = [kind for plug_in in ours for kind in inspect_plugin(plug_in.module).kinds]

    assert Counter(kind.class_path for kind in registered) == Counter(map(class_path, triggers()))
    declared = {class_path(cls): cls.public_fields for cls in triggers()}
    assert {kind.class_path: kind.public_fields for kind in registered} == declared
    assert all(kind.summary for kind in registered)


SECRET = "c4n4ry"
WAITS: dict[str, tuple[str, dict[str, Any]]] = {
    "for the event settled with the key eu": ("EventTrigger", {"name": "settled", "key": "eu"}),
    "for the event settled": ("EventTrigger", {"name": "settled"}),
    "for the next run of DAG daily to end": ("RunTrigger", {"dag": "daily"}),
    "for task load of run mon of DAG daily": (
        *("RunTrigger", {"dag": "daily", "task": "load", "run_id": "mon"}),
    ),
    "for the run of DAG daily at 2030-01-01T12:00:00Z, offset by -1d": (
        *("RunTrigger", {"dag": "daily", "logical_date": NOON, "offset": "-1d"}),
    ),
    "for tasks a, b of the run of DAG daily at 2030-01-01T12:00:00Z": (
        *("TasksTrigger", {"dag": "daily", "logical_date": NOON, "tasks": ["a", "b"]}),
    ),
    "for the file /in/bank.csv": ("FileTrigger", {"path": "/in/bank.csv"}),
    "for the file /in/lock to be removed": ("FileGoneTrigger", {"path": "/in/lock"}),
    "for a file like /in/*.csv": ("FilesTrigger", {"pattern": "/in/*.csv"}),
    "for 2 files like /in/*.csv": ("FilesTrigger", {"pattern": "/in/*.csv", "at_least": 2}),
    "for new files like /in/*.csv": ("NewFiles", {"pattern": "/in/*.csv"}),
    "for GET https://bank.example/day?token=*** to answer 200": (
        *("HttpTrigger", {"url": f"https://bank.example/day?token={SECRET}", "body": SECRET}),
    ),
    "for new items of https://bank.example/day, without end as interval is not None": (
        "HttpPagesTrigger",
        {"url": "https://bank.example/day", "next_link": "next", "headers": {"a": SECRET}},
    ),
    "for the items of https://bank.example/day, up to its last page": (
        "HttpPagesTrigger",
        {"url": "https://bank.example/day", "next_link": "next", "interval": None},
    ),
    "for the object s3://in/day.csv": (
        *("ObjectTrigger", {"url": "s3://in/day.csv", "options": {"secret_access_key": SECRET}}),
    ),
    "for new objects like s3://in/*.csv": (
        *("NewObjects", {"url": "s3://in/*.csv", "options": {"secret_access_key": SECRET}}),
    ),
    "for the next tick of '*/5 * * * *' in UTC": ("CronTrigger", {"expression": "*/5 * * * *"}),
    "for 2030-01-01T12:00:00Z": ("DateTimeTrigger", {"moment": NOON}),
    "for 1h30m to pass": ("TimeDeltaTrigger", {"delta": "1h30m"}),
    "for 90 s to pass": ("TimeDeltaTrigger", {"delta": timedelta(seconds=90)}),
}


def test_each_class_of_the_catalogue_says_in_a_sentence_what_it_waits_for():
    assert CATALOGUE_SENTENCES.keys() == set(map(class_path, triggers()))

    shown = PublicFields(Masks())
    found = {}
    for wanted, (name, fields) in WAITS.items():
        path, kwargs = serialize(getattr(aioflow_triggers, name)(**fields))
        found[wanted] = shown.sentence(path, kwargs, None)
    assert not (rows := differing(found, {wanted: wanted for wanted in WAITS})), rows
    assert {name for name, _ in WAITS.values()} == {cls.__name__ for cls in triggers()}


def test_importing_the_package_imports_no_module_of_it_and_needs_no_extra():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [
        "",
        "aioflow_triggers.http aioflow_triggers.objects aioflow_triggers.sensors",
    ]
