"""Connections are tested in another process, against real servers, including plug-in types."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import httpx2
import msgspec
import pytest

from aioflow.author.client import Connection, connection_of
from aioflow.errors import BadValue, NoSuchValue
from aioflow.model.access import Actor, Role
from aioflow.model.dag import ValueKind
from aioflow.processes.connection_tests import ConnectionTests
from benchmarks.daemon import eventually
from tests.author.test_mail import SmtpServer
from tests.executors.processes import is_alive
from tests.packages import SitePackages
from tests.triggers.site import site
from tests.web.node import node

CONNECTION = ValueKind.CONNECTION
PASSWORD = "hunter2-canary"

PLUG_IN = """
import os, subprocess, sys, time
from aioflow import ConnectionField, ConnectionType

class Odd(ConnectionType):
    label = "Odd"
    schemes = ("odd",)
    fields = (ConnectionField(name="host", label="What it does", is_required=True),)

    def test(self, connection):
        print("no answer")
        match connection.host:
            case "hangs":
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
                open(connection.schema, "w").write(f"{os.getpid()} {child.pid}")
                time.sleep(60)
            case "dies":
                os._exit(3)
            case "tells":
                raise ConnectionError(f"{connection.password} is wrong\\n{connection.uri}")
            case "environment":
                return " ".join(sorted(os.environ))
            case "floods":
                return "x" * 1_000_000
        return f"it works with {connection.password}"

class Broken:
    raise RuntimeError("it cannot be imported")
"""


def plug_in(tmp_path: Path, source: str = PLUG_IN, **points: str) -> Mapping[str, str]:
    """Install a package of connection types. Return the environment in which it is found."""
    packages = SitePackages(tmp_path)
    packages.install("odd_types", "1.0", source)
    metadata = packages.folder / "odd_types-1.0.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-types\nVersion: 1.0\n")
    lines = [f"{name} = odd_types:{value}" for name, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[aioflow.connections]", *lines]))
    return {**os.environ, "PYTHONPATH": str(packages.folder)}


@pytest.fixture
def odd(tmp_path: Path) -> ConnectionTests:
    source = PLUG_IN.partition("class Broken")[0]
    environment = plug_in(tmp_path, source, odd="Odd", missing="Missing")
    secrets = {"AIOFLOW_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "k"}
    return ConnectionTests({**environment, **secrets}, test_seconds=1.0)


# ── types ───────────────────────────────────────────────────────────────────────────────


async def test_types_of_plug_ins_are_found_and_one_that_is_broken_hides_no_other(
    tmp_path: Path,
) -> None:
    found = await ConnectionTests(plug_in(tmp_path, odd="Odd")).types()

    names = {one.name for one in found.types}
    assert names == {"generic", "http", "object_store", "postgres", "smtp"}
    assert list(found.problems) == ["odd"]
    assert "it cannot be imported" in found.problems["odd"]


async def test_type_of_a_plug_in_has_its_form_and_tests_its_connections(
    odd: ConnectionTests,
) -> None:
    found = await odd.types()
    outcome = await odd.test(Connection(conn_type="odd", host="works", password=PASSWORD))

    (about,) = [one for one in found.types if one.name == "odd"]
    assert (about.label, about.package) == ("Odd", "odd-types")
    assert [field.label for field in about.fields] == ["What it does"]
    assert "missing" in found.problems
    assert (outcome.is_ok, outcome.type) == (True, "odd")
    assert outcome.message == "it works with ***"


# ── limits ──────────────────────────────────────────────────────────────────────────────


async def test_test_that_hangs_is_killed_with_all_that_it_started(
    odd: ConnectionTests, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    outcome = await odd.test(Connection(conn_type="odd", host="hangs", schema=str(started)))

    assert (outcome.is_ok, outcome.message) == (False, "no answer in 1 s")
    pids = [int(pid) for pid in started.read_text().split()]
    eventually(lambda: not any(map(is_alive, pids)))  # the kernel kills each when it next runs


@pytest.mark.parametrize(
    ("what", "is_ok", "message"),
    [
        ("dies", False, "the process of the test died"),
        ("tells", False, "ConnectionError: *** is wrong odd://:***@tells"),
        ("floods", True, "x" * 500),
    ],
    ids=["dies", "tells", "floods"],
)
async def test_answer_of_a_test_is_short_and_has_no_secret(
    odd: ConnectionTests, what: str, is_ok: bool, message: str
) -> None:
    outcome = await odd.test(Connection(conn_type="odd", host=what, password=PASSWORD))

    assert (outcome.is_ok, outcome.message) == (is_ok, message)


async def test_process_of_a_test_has_no_key_and_no_token(odd: ConnectionTests) -> None:
    outcome = await odd.test(Connection(conn_type="odd", host="environment"))

    assert "PYTHONPATH" in outcome.message
    assert "TOKEN" not in outcome.message.replace("AIOFLOW_CHILD_WITHHELD", "")
    assert "AWS_SECRET_ACCESS_KEY" not in outcome.message


# ── real servers ────────────────────────────────────────────────────────────────────────


async def outcome_of(uri: str, **extra: str) -> tuple[bool, str, str]:
    made = connection_of(uri)
    made = msgspec.structs.replace(made, extra={**made.extra, **extra})
    found = await ConnectionTests().test(made)
    return found.is_ok, found.type, found.message


async def test_web_server_is_asked_once_with_the_credentials() -> None:
    async with site() as here:
        here.reply(404)
        here.reply(401)
        port = here.url.rpartition(":")[2]
        found = await outcome_of(f"http://ada:{PASSWORD}@127.0.0.1:{port}/v1")
        refused = await outcome_of(f"http://:{PASSWORD}@127.0.0.1:{port}")

    assert found == (True, "http", f"http://127.0.0.1:{port}/v1 answers 404")
    assert (refused[0], "refuses the credentials: 401" in refused[2]) == (False, True)
    headers = [request.headers["authorization"].partition(" ")[0] for request in here.asked]
    assert headers == ["Basic", "Bearer"]


async def test_postgres_is_logged_in_to(postgres_url: str) -> None:
    uri = postgres_url
    found = await outcome_of(uri)
    missing = await outcome_of(uri.replace("/test_", "/not_there_"))

    assert found[:2] == (True, "postgres")
    assert found[2].startswith("PostgreSQL ")
    assert (missing[0], "not_there" in missing[2]) == (False, True)


async def test_object_store_lists_the_bucket(moto: str) -> None:
    await asyncio.to_thread(lambda: httpx2.put(f"{moto}/here", timeout=60))
    options = {
        "endpoint": moto,
        "region": "us-east-1",
        "virtual_hosted_style_request": "false",
    }
    found = await outcome_of(f"s3://key:{PASSWORD}@here", **options)
    missing = await outcome_of(f"s3://key:{PASSWORD}@elsewhere", **options)

    assert found == (True, "object_store", "s3://here can be listed")
    assert not missing[0]
    assert PASSWORD not in missing[2]


@pytest.mark.parametrize("accepts", [True, False])
async def test_mail_server_is_logged_in_to(accepts: bool) -> None:
    answers = {} if accepts else {"AUTH": b"535 no"}
    with closing(SmtpServer(answers, ("AUTH PLAIN",), None, is_tls=False)) as server:
        is_ok, kind, message = await outcome_of(f"smtp://ada:{PASSWORD}@127.0.0.1:{server.port}")

    assert (is_ok, kind) == (accepts, "smtp")
    assert ("accepts the user" if accepts else "535") in message


async def test_other_server_is_connected_to_and_says_what_that_does_not_prove() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = await outcome_of(f"mysql://ada:{PASSWORD}@127.0.0.1:{port}/books")
    closed = await outcome_of(f"mysql://127.0.0.1:{port}")

    assert (found[0], found[1]) == (True, "generic")
    assert "was not tested" in found[2]
    assert (closed[0], "refused" in closed[2]) == (False, True)


# ── the API ─────────────────────────────────────────────────────────────────────────────


async def test_test_of_a_stored_connection_is_audited(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.api.values.set(CONNECTION, "team/x", "mysql://ada:hunter2-canary@127.0.0.1:1")
        api = n.api.by(Actor(name="anna", role=Role.ADMIN))
        found = await api.connections.test("team/x")
        with pytest.raises(NoSuchValue):
            await api.connections.test("other")
        lines = [one.noted for one in await n.store.list_audit()]

    assert (found.ok, found.type) == (False, "generic")
    assert [(line.actor, line.action, line.target) for line in lines] == [
        ("anna", "connection.test", "team/x")
    ]


async def test_connection_is_shown_without_its_secrets(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        value = {
            "conn_type": "https",
            "host": f"https://x:{PASSWORD}@hooks.example",
            "login": "ada",
            "password": PASSWORD,
            "extra": {"api_key": "k-canary", "region": "eu", "more": [{"token": "t-canary"}]},
        }
        await n.api.values.set(CONNECTION, "hook", value)
        shown = await n.api.connections.show("hook")

    assert "canary" not in repr(shown)
    assert (shown.login, shown.has_password) == ("ada", True)
    assert shown.extra == {"api_key": None, "region": "eu", "more": [{"token": None}]}


async def test_secrets_are_kept_for_the_same_server_only(tmp_path: Path) -> None:
    old = {"conn_type": "https", "host": "a", "password": PASSWORD, "extra": {"api_key": "k"}}
    async with node(tmp_path) as n:

        async def kept(**changes: object) -> Mapping[str, object]:
            await n.api.values.set(CONNECTION, "c", old)
            value = {"conn_type": "https", "host": "a", **changes}
            await n.api.values.set(CONNECTION, "c", value, keep_secrets=True)
            found, _ = await n.api.connections._find("c")
            return msgspec.structs.asdict(found)

        same = await kept(login="ada", extra={"region": "eu"})
        other = await kept(host="a", password="new-password", extra={"api_key": "l"})
        with pytest.raises(BadValue, match="same server"):
            await kept(host="evil.example")
        with pytest.raises(BadValue, match="same server"):
            await kept(port=8443, password="new-password")
        after, _ = await n.api.connections._find("c")

    assert (same["login"], same["password"]) == ("ada", PASSWORD)
    assert same["extra"] == {"region": "eu", "api_key": "k"}
    assert (other["password"], other["extra"]) == ("new-password", {"api_key": "l"})
    assert after.host == "a"
