"""The standard trigger catalogue: an ordinary plug-in that uses only the public API of aioflow.

Every trigger, sensor and operator of its modules can be imported from the package itself::

    from aioflow_triggers import DateTimeTrigger, FileTrigger

A module is imported when one of its names is first used, so that waiting for files does not
require an HTTP client. A class keeps the path of its module, which is stored with each trigger.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioflow_triggers.events import EventTrigger
    from aioflow_triggers.external import RunTrigger, TasksTrigger
    from aioflow_triggers.files import FileGoneTrigger, FilesTrigger, FileTrigger, NewFiles
    from aioflow_triggers.http import HttpTrigger
    from aioflow_triggers.objects import NewObjects, ObjectTrigger
    from aioflow_triggers.operators import BashOperator, EmptyOperator, TriggerDagRun
    from aioflow_triggers.pages import HttpPagesTrigger
    from aioflow_triggers.sensors import (
        DateTimeSensor,
        ExternalTaskSensor,
        FileSensor,
        HttpSensor,
        ObjectSensor,
        TimeDeltaSensor,
    )
    from aioflow_triggers.temporal import CronTrigger, DateTimeTrigger, TimeDeltaTrigger
else:
    # Hidden from type checkers, which would otherwise accept every misspelled name.

    def __getattr__(name: str) -> object:
        """Import the module that defines a name, once."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return globals()[name]


__all__ = (
    "BashOperator",
    "CronTrigger",
    "DateTimeSensor",
    "DateTimeTrigger",
    "EmptyOperator",
    "EventTrigger",
    "ExternalTaskSensor",
    "FileGoneTrigger",
    "FileSensor",
    "FileTrigger",
    "FilesTrigger",
    "HttpPagesTrigger",
    "HttpSensor",
    "HttpTrigger",
    "NewFiles",
    "NewObjects",
    "ObjectSensor",
    "ObjectTrigger",
    "RunTrigger",
    "TasksTrigger",
    "TimeDeltaSensor",
    "TimeDeltaTrigger",
    "TriggerDagRun",
)

_MODULES = {
    "BashOperator": "operators",
    "CronTrigger": "temporal",
    "DateTimeSensor": "sensors",
    "DateTimeTrigger": "temporal",
    "EmptyOperator": "operators",
    "EventTrigger": "events",
    "ExternalTaskSensor": "sensors",
    "FileGoneTrigger": "files",
    "FileSensor": "sensors",
    "FileTrigger": "files",
    "FilesTrigger": "files",
    "HttpPagesTrigger": "pages",
    "HttpSensor": "sensors",
    "HttpTrigger": "http",
    "NewFiles": "files",
    "NewObjects": "objects",
    "ObjectSensor": "sensors",
    "ObjectTrigger": "objects",
    "RunTrigger": "external",
    "TasksTrigger": "external",
    "TimeDeltaSensor": "sensors",
    "TimeDeltaTrigger": "temporal",
    "TriggerDagRun": "operators",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
