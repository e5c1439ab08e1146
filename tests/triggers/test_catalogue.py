"""The package of the catalogue offers what its modules define, and registers each trigger once."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import aioflow_triggers
from aioflow import Operator, Sensor, Trigger
from aioflow.author.trigger import class_path
from aioflow.catalog.plug_ins import plug_ins
from aioflow.host.plug_in import look_at

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
    """Return the triggers among them."""
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
    registered = [kind for plug_in in ours for kind in look_at(plug_in.module).kinds]

    assert Counter(kind.class_path for kind in registered) == Counter(map(class_path, triggers()))
    declared = {class_path(cls): cls.public_fields for cls in triggers()}
    assert {kind.class_path: kind.public_fields for kind in registered} == declared
    assert all(kind.summary for kind in registered)


def test_importing_the_package_imports_no_module_of_it_and_needs_no_extra():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [
        "",
        "aioflow_triggers.http aioflow_triggers.objects aioflow_triggers.sensors",
    ]
