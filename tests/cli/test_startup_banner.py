"""The banner shows the token on terminals only."""

from __future__ import annotations

import io
import json
import re
import stat
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioflow.cli.startup_banner import banner_facts, banner_lines, shown_url
from aioflow.daemon.node import Ready
from tests.cli.served import Daemon
from tests.cli.test_shapes import TOLD
from tests.commands import run

TOKEN = "s3cret-s3cret-s3cret-s3cret-s3cret"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ready() -> Ready:
    return Ready(
        url=f"http://127.0.0.1:8793/?token={TOKEN}",
        token_file=Path("/srv/flows/token"),
        home=Path("/srv/flows"),
        store="sqlite:////srv/flows/aioflow.db",
        dags=(Path("/srv/dags"),),
        pid=17,
        stopped=anyio.Event(),
    )


SAYINGS = (banner_lines, lambda *about: str(banner_facts(*about)), shown_url)


@pytest.mark.parametrize("say", SAYINGS)
def test_a_terminal_is_shown_a_link_that_opens_the_page(say: Any):
    assert f"http://127.0.0.1:8793/?token={TOKEN}" in say(ready(), Terminal())


@pytest.mark.parametrize("say", SAYINGS)
def test_anything_else_is_not_told_the_token(say: Any):
    said = say(ready(), io.StringIO())

    assert TOKEN not in said
    assert "http://127.0.0.1:8793/" in said


@pytest.mark.parametrize("say", SAYINGS[:2])
def test_the_file_that_holds_it_is_named(say: Any):
    assert "/srv/flows/token" in say(ready(), io.StringIO())


@pytest.mark.process
@pytest.mark.timeout(400)
def test_a_daemon_whose_output_is_piped_names_the_file_of_its_token(daemon: Daemon):
    file = Path(daemon.facts["token_file"])
    token = file.read_text().strip()

    assert [*daemon.facts] == TOLD["up"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", daemon.facts["url"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in json.dumps(daemon.facts) + daemon.log.read_text()
    opened = run("dags", "list", "--url", daemon.facts["url"], AIOFLOW_TOKEN=token)
    assert opened.status == 0, opened.err
