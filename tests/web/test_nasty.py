"""Names and numbers that often break software: every route refuses them or finds nothing."""

from __future__ import annotations

import pathlib
from urllib.parse import quote

import pytest

from aioflow.executors.worker_process import log_key
from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.sampling import sampled
from tests.web.node import CHAIN, Node, ask, node

ENDLESS = {"/api/v1/stream", "/api/v1/runs/{run_id}/tasks/{task_id}/logs/stream"}

NASTY = [
    "..",
    "../../etc/passwd",
    "..%5c..%5c",
    "a\0b",
    "/etc/passwd",
    "x" * 4_096,
    "CON",
    "name'; DROP TABLE run;--",
    "%_\\",
    "' OR 1=1",
    "\ud800",
    "<img src=x onerror=alert(1)>",
    "{{7*7}}",
    "\x1b]0;title\x07",
    "10" * 400,
    "-1",
    "1e999",
    "9223372036854775808",
    "NaN",
]


@pytest.mark.parametrize("text", sampled(NASTY, NASTY[::4]), ids=range(len(NASTY)))
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_no_route_that_reads_breaks_over(text, tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        web = Trusted(create_app(n.api, Token("t" * 43)))
        described = (await ask(web, "GET", "/api/v1/openapi.json")).json
        quoted = quote(text.encode(errors="surrogatepass"), safe="")
        asked = targets(described, quoted)
        answers = [(target, await ask(web, "GET", target)) for target in asked]
        assert len(await n.api.list_runs()) == 1

    assert len(answers) > 60
    for target, answer in answers:
        assert answer.status < 500, target
        if answer.status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert str(tmp_path) not in answer.json["detail"]
            assert "Traceback" not in answer.json["detail"]


def targets(described, text):
    """Yield each route with the text in place of its names, and for each query parameter."""
    known = {"dag_id": "chain", "run_id": "r", "task_id": "first"}
    for path, methods in described["paths"].items():
        if "get" not in methods or path in ENDLESS:
            continue
        sound = nasty = path
        parameters = methods["get"].get("parameters", ())
        for one in parameters:
            if one["in"] == "path":
                sound = sound.replace(f"{{{one['name']}}}", known.get(one["name"], "1"))
                nasty = nasty.replace(f"{{{one['name']}}}", text)
        yield nasty
        for one in parameters:
            if one["in"] == "query":
                yield f"{sound}?{one['name']}={text}"


async def printed(n: Node, text: bytes) -> None:
    """Let the first task of the run print a text, and wait until it can be read."""
    start = (await n.effects.next_start()).start
    log = n.api._tasklog.open(log_key(start))
    await log.write(text)
    log.close()
    while not await n.api.logs("r", "first"):
        await n.api.list_pools()


async def test_a_link_among_the_logs_is_not_followed(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        await printed(n, b"secret of another")
        path = n.api._tasklog.path((await n.api.run("r")).run_no, 0)
        real = path.rename(tmp_path / "elsewhere.log")
        pathlib.Path(path).symlink_to(real)
        read = await n.api.logs("r", "first")

    assert read == b""


async def test_a_log_can_be_saved_as_a_file_and_is_never_more_than_text(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        web = Trusted(create_app(n.api, Token("t" * 43)))
        kept = await ask(web, "GET", "/api/v1/runs/r/tasks/first/logs?download=true")
        shown = await ask(web, "GET", "/api/v1/runs/r/tasks/first/logs")

    assert kept.headers["content-disposition"].startswith("attachment")
    assert "content-disposition" not in shown.headers
    assert shown.headers["content-type"] == "text/plain; charset=utf-8"
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert (shown.headers["x-log-end"], shown.headers["x-log-live"]) == ("0", "1")


async def test_lines_of_a_log_are_found_by_what_they_contain(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        await printed(n, b"one\nERROR two\nthree\nerror four\nlast")
        web = Trusted(create_app(n.api, Token("t" * 43)))
        path = "/api/v1/runs/r/tasks/first/logs?format=lines"
        found = (await ask(web, "GET", f"{path}&search=error")).json
        first = (await ask(web, "GET", f"{path}&limit=2")).json
        rest = (await ask(web, "GET", f"{path}&offset={first['next_offset']}")).json

    assert [line["text"] for line in found["lines"]] == ["ERROR two", "error four"]
    assert [line["offset"] for line in found["lines"]] == [4, 20]
    assert found["next_offset"] is None
    assert [line["text"] for line in first["lines"]] == ["one", "ERROR two"]
    assert [line["text"] for line in rest["lines"]] == ["three", "error four", "last"]
