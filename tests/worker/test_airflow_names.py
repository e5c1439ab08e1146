"""Imports from Airflow of names that do not exist here: the error says what to write instead."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from itertools import chain

import pytest

from aioflow.author.context import CONTEXT_INSTEAD, TEMPLATE_NAMES, RunContext, context_value
from aioflow.errors import AirflowImport, UnknownContextKey
from aioflow.worker.airflow import finder
from aioflow.worker.airflow.instead import MODULES, NAMES, PAGE, instead_of
from aioflow.worker.failures import failure_of

RUN = RunContext(run_id="r-1", dag_id="d", created_at=1_767_225_600_000_000)

IMPORTS = {
    "from airflow.sdk import dag": "its airflow.sdk has no 'dag'; instead of dag write "
    "`from aioflow import dag`. It has AirflowException, BaseOperator,",
    "from airflow import DAG": "its airflow has no 'DAG'; instead of DAG write "
    "`from aioflow import DAG`",
    "from airflow.triggers.base import Mine": "its airflow.triggers.base has no 'Mine', nor "
    "anything in its place. It has BaseEventTrigger,",
    "from airflow.models import Variable": "instead of Variable write `aioflow.variable('X')`",
    "from airflow.models.dag import DAG": "instead of DAG write `from aioflow import DAG`",
    "from airflow.operators.bash import BashOperator": "has no airflow.operators.bash; instead of "
    "BashOperator write `from aioflow_triggers import BashOperator`",
    "import airflow.operators.python": "`@task` on the function instead of PythonOperator",
    "import airflow.decorators": "`from aioflow import task` instead of task",
    "from airflow.providers.amazon.aws.hooks.s3 import S3Hook": "has no "
    "airflow.providers.amazon.aws.hooks.s3, nor anything in its place",
}

# Names in task-sdk 1.3.2, which is part of Airflow 3.3.2.
SDK = re.findall(
    r"\w+",
    """
AllowedKeyMapper Asset AssetAccessControl AssetAlias AssetAll AssetAny AssetOrTimeSchedule
AssetWatcher AsyncCallback BaseAsyncOperator BaseBranchOperator BaseDeadlineReference BaseHook
BaseNotifier BaseOperator BaseOperatorLink BaseSensorOperator BaseXCom BranchMixIn ChainMapper
Connection Context CronDataIntervalTimetable CronTriggerTimetable CronPartitionTimetable DAG
DagRunState DayWindow DeadlineAlert DeadlineReference DeltaDataIntervalTimetable
DeltaTriggerTimetable EdgeModifier EventsTimetable ExceptionRetryPolicy FanOutMapper
FixedKeyMapper HourWindow IdentityMapper Label Metadata MinimumCount MonthWindow
MultipleCronTriggerTimetable NEVER_EXPIRE ObjectStoragePath Param ParamsDict
PartitionedAtRuntime PartitionedAssetTimetable PartitionMapper PokeReturnValue ProductMapper
QuarterWindow ResumableJobMixin RetryAction RetryDecision RetryPolicy RetryRule RollupMapper
SegmentWindow SkipMixin SyncCallback StartOfDayMapper StartOfHourMapper StartOfMonthMapper
StartOfQuarterMapper StartOfWeekMapper StartOfYearMapper TaskGroup TaskInstance
TaskInstanceState TriggerRule Variable WaitForAll WeekWindow WeightRule Window XComArg
YearWindow asset chain chain_linear conf cross_downstream dag deadline_reference
get_current_context get_parsing_context literal lineage macros result setup task task_group
teardown
""",
)

CONTEXT = re.findall(
    r"\w+",
    """
conn dag dag_run data_interval_end data_interval_start outlet_events ds ds_nodash
expanded_ti_count exception inlets inlet_events logical_date macros map_index_template outlets
params partition_key partition_date prev_data_interval_start_success
prev_data_interval_end_success prev_start_date_success prev_end_date_success reason run_id task
task_reschedule_count task_instance task_instance_key_str task_state_store asset_state_store
templates_dict test_mode ti triggering_asset_events try_number ts ts_nodash ts_nodash_with_tz var
""",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder on this process's path. The import finder is active for this test only."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    finder.install()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "airflow"]:
        del sys.modules[name]


@pytest.mark.parametrize("statement", IMPORTS)
def test_an_import_says_what_to_write_instead(folder, statement):
    with pytest.raises(AirflowImport) as raised:
        exec(statement, {})

    said = str(raised.value)
    assert said.startswith("aioflow stands in for Airflow here, and ")
    assert IMPORTS[statement] in said
    assert said.endswith(f"See {PAGE}")
    assert raised.value.code == "dag.airflow_import"
    assert raised.value.name in finder.CONTENTS.keys() | {"airflow"}


def test_each_name_of_the_sdk_is_there_or_says_so(folder):
    there = finder.names_of("airflow.sdk")

    for name in SDK:
        if name in there:
            exec(f"from airflow.sdk import {name}", {})
            continue
        with pytest.raises(AirflowImport, match=f"has no '{name}'"):
            exec(f"from airflow.sdk import {name}", {})
        said = instead_of(f"airflow.sdk.{name}", there)
        assert (NAMES[name] in said) if name in NAMES else "nor anything in its place" in said


def test_an_attribute_says_the_same(folder):
    airflow = importlib.import_module("airflow")

    assert not hasattr(airflow, "DAG")
    with pytest.raises(AttributeError, match="instead of DAG write `from aioflow import DAG`"):
        _ = airflow.DAG


def test_code_that_tests_for_a_name_gets_an_ordinary_answer(folder):
    (folder / "airflow" / "providers" / "mine").mkdir(parents=True)
    (folder / "airflow" / "providers" / "mine" / "wait.py").touch()

    for statement in ("from airflow.sdk import dag", "import airflow.hooks.base"):
        with pytest.raises(ModuleNotFoundError):
            exec(statement, {})
    assert importlib.util.find_spec("airflow.sdk.dag") is None
    assert importlib.util.find_spec("airflow.hooks") is None
    assert importlib.util.find_spec("airflow.providers.mine.wait") is not None


def test_suggested_replacements_exist():
    found = re.findall(
        r"from (aioflow\w*) import (\w+)|(aioflow\w*)\.(\w+)", " ".join(NAMES.values())
    )

    assert len(found) > 40
    for parts in found:
        module, name = filter(None, parts)
        assert hasattr(importlib.import_module(module), name), (module, name)
    assert set(chain.from_iterable(MODULES.values())) <= NAMES.keys()


def test_each_key_of_airflows_context_is_there_or_says_what_to_write():
    assert set(CONTEXT) <= TEMPLATE_NAMES | {"task"} | CONTEXT_INSTEAD.keys()
    assert not TEMPLATE_NAMES & CONTEXT_INSTEAD.keys()


def test_a_key_that_the_context_does_not_have_says_what_to_write():
    context = context_value("context", RUN)

    with pytest.raises(UnknownContextKey) as raised:
        context["ti"]
    assert isinstance(raised.value, KeyError)
    assert str(raised.value) == f"the context has no 'ti': {CONTEXT_INSTEAD['ti']}"
    with pytest.raises(KeyError, match=r"the context has no 'nobody'; it has .*\bds\b"):
        context["nobody"]
    with pytest.raises(UnknownContextKey):
        context.get("ti")
    assert ("ti" in context, context.get("ti", 1), context.get("ti", None)) == (False, 1, None)
    optional = ("exception", "execution_date", "templates_dict", "unknown")
    assert [context.get(key) for key in optional] == [None] * 4
    assert context.get("ds") == "2026-01-01"


def ported(key: str, **kwargs):
    return kwargs[key]


def test_kwargs_that_the_run_has_filled_say_so_too():
    filled = context_value("context", RUN) | {"context": {}}

    def message(key: str, given: dict[str, object]) -> str:
        with pytest.raises(KeyError) as raised:
            ported(key, **given)
        return failure_of(raised.value).message

    assert message("ti", filled) == f"'ti' is not a key of the context: {CONTEXT_INSTEAD['ti']}"
    assert message("other", filled) == "'other'"
    assert message("ti", {"ds": "x"}) == "'ti'"


def test_a_key_of_something_else_is_left_alone():
    def own(**kwargs):
        return {"a": 1}["ti"] if not kwargs else None

    with pytest.raises(KeyError) as raised:
        own()

    assert failure_of(raised.value).message == "'ti'"
