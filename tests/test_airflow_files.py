"""A file written for Airflow, or without the word aioflow, is not skipped silently."""

from __future__ import annotations

import pytest

from aioflow.catalog.folder_scan import may_define_dags, scan
from tests.commands import run

OF_AIRFLOW = [
    "from airflow import DAG\n",
    "from airflow.sdk import (\n    Asset,\n    dag,\n)\n",
    "from airflow.decorators import task, dag\n",
    "from airflow import models\nwith models.DAG('x'): ...\n",
    "import airflow\nairflow.DAG('x')\n",
    "try:\n    from airflow.models.dag import DAG as D\nexcept ImportError: ...\n",
]
OF_NOBODY = [
    "from airflow.triggers.base import BaseTrigger\n# for a DAG\n",
    "# from airflow import DAG\n",
    "from airflow.models import dagbag\n",
    "'''a port of a DAG for airflow'''\n",
    "from mine import dag\n",
    "from airflow.sdk import (\n    Asset)\nx = (dag)\n",
    "from airflow.sdk import Asset  # no DAG\n",
]


def test_a_file_that_takes_its_dag_from_airflow_is_parsed():
    found = {text: may_define_dags(text.encode()) for text in [*OF_AIRFLOW, *OF_NOBODY]}

    assert found == {**dict.fromkeys(OF_AIRFLOW, True), **dict.fromkeys(OF_NOBODY, False)}


def test_the_sweep_finds_it(tmp_path):
    (tmp_path / "old.py").write_text(OF_AIRFLOW[0])
    (tmp_path / "helper.py").write_text(OF_NOBODY[0])

    found = scan([tmp_path], {}).files

    assert {name: seen.has_dags for name, seen in found.items()} == {
        "old.py": True,
        "helper.py": False,
    }


@pytest.mark.process
def test_check_says_what_to_write_in_files_of_a_folder(tmp_path):
    (tmp_path / "old.py").write_text(
        "from datetime import datetime\n\nfrom airflow.sdk import dag, task\n"
    )
    (tmp_path / "templates.py").write_text(
        "from aioflow import DAG\nfrom aioflow_triggers import FileSensor\n\n"
        'with DAG("d"):\n    FileSensor(task_id="a", filepath="/in/{{ ds }.csv")\n'
    )
    (tmp_path / "helper.py").write_text("from aioflow import DAG, task\n\n@task\ndef a(): ...\n")
    nameless = tmp_path / "nameless.py"
    nameless.write_text("from helper import DAG, a\n\nwith DAG('e'):\n    a()\n")

    done = run("dags", "check", tmp_path)
    named = run("dags", "check", nameless)

    old, templates = done.out.splitlines()
    assert (done.status, named.status) == (1, 1)
    assert old.startswith(f"{tmp_path}/old.py:3: dag.airflow_import aioflow stands in for Airflow")
    assert "instead of dag write `from aioflow import dag`" in old
    assert templates.startswith(
        f"{tmp_path}/templates.py:5: dag.template task 'a': "
        "field 'filepath' is not a valid template: "
        "unexpected '}' (line 1, column 11 of the text)"
    )
    assert named.out.startswith(f"{nameless}:1: file.unnamed a daemon passes this file over")
    assert "write `import aioflow` at its top" in named.out
