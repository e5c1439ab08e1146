from __future__ import annotations

from pathlib import Path

import pytest

from aioflow.errors import SettingsError
from aioflow.settings import SOCKET_PATH_LIMIT, Settings, find_home, is_loopback, socket_path


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    return home


def write(home: Path, text: str) -> None:
    (home / "aioflow.toml").write_text(text)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(home, monkeypatch):
    write(home, "[web]\nport = 1001\nhost = '127.0.0.2'\n[slots]\nasync = 5\n")
    monkeypatch.setenv("AIOFLOW_WEB__PORT", "1002")
    monkeypatch.setenv("AIOFLOW_SLOTS__ASYNC", "6")

    settings = Settings.read(home, {"web.port": 1003, "slots.cpu": None})

    assert (settings.port, settings.async_slots, settings.host) == (1003, 6, "127.0.0.2")
    assert settings.sources["web.port"] == "flag"
    assert settings.sources["slots.async"] == "environment AIOFLOW_SLOTS__ASYNC"
    assert settings.sources["web.host"] == f"file {home}/aioflow.toml"
    assert settings.sources["log.level"] == "default"


@pytest.mark.parametrize(
    ("variables", "text", "words"),
    [
        pytest.param({}, "[web]\nprot = 1", ["web.prot", "no such setting"], id="key-in-file"),
        pytest.param({}, "[wbe]\nport = 1", ["wbe", "no such setting"], id="section-in-file"),
        pytest.param({}, "[web", ["aioflow.toml", "not TOML"], id="no-toml"),
        pytest.param({}, "web = 5", ["web"], id="a-value-for-a-section"),
        pytest.param(
            {"AIOFLOW_WEB__PORT": "x"}, "", ["web.port", "AIOFLOW_WEB__PORT"], id="no-number"
        ),
        pytest.param({"AIOFLOW_WEB__PROT": "1"}, "", ["AIOFLOW_WEB__PROT"], id="key"),
        pytest.param({"AIOFLOW_WBE__PORT": "1"}, "", ["AIOFLOW_WBE__PORT"], id="section"),
        pytest.param({"AIOFLOW_LOG__LEVEL": "loud"}, "", ["log.level"], id="no-choice"),
        pytest.param({"AIOFLOW_WEB__PORT": "65536"}, "", ["web.port"], id="too-large"),
        pytest.param({"AIOFLOW_SLOTS__CPU": "0"}, "", ["slots.cpu"], id="too-small"),
        pytest.param({"AIOFLOW_DEFAULT_TRIES": "0"}, "", ["default_tries"], id="no-try"),
        pytest.param({}, "[parse]\nprocesses = 1", ["parse.processes"], id="too-few-parsers"),
        pytest.param({"AIOFLOW_CHILDREN__ENV": "A=1"}, "", ["children.env"], id="no-name"),
        pytest.param({}, "[children]\nenv = ['AIOFLOW_X']", ["children.env"], id="ours"),
        pytest.param({}, 'executor = "dask"', ["[executors.dask]"], id="no-table"),
        pytest.param({}, "[executors.local]\na = 1", ["executors", "'local'"], id="not-local"),
        pytest.param({}, '[executors."a b"]\na = 1', ["executors", "'a b'"], id="bad-executor"),
        pytest.param({}, "executors = 3", ["executors"], id="no-tables"),
    ],
)
def test_an_error_is_one_line_with_its_location(home, monkeypatch, variables, text, words):
    write(home, text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError) as caught:
        Settings.read(home)

    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_other_variables_of_ours_are_no_settings(home, monkeypatch):
    monkeypatch.setenv("AIOFLOW_TOKEN", "secret")
    monkeypatch.setenv("AIOFLOW_HOME", str(home))

    settings = Settings.read()

    assert settings.home == home
    assert settings.sources["home"] == "environment AIOFLOW_HOME"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AIOFLOW_WEB_PORT", "AIOFLOW_WEB__PORT"),
        ("AIOFLOW_DGAS", "AIOFLOW_DAGS"),
        ("AIOFLOW_HOEM", "AIOFLOW_HOME"),
        ("AIOFLOW_DEFAULT_RETRIES", "AIOFLOW_DEFAULT_TRIES"),
        ("AIOFLOW_NONSENSE", ""),
    ],
)
def test_an_unknown_variable_with_our_prefix_is_reported_with_a_suggestion(
    home, monkeypatch, name, meant
):
    monkeypatch.setenv(name, "1")

    settings = Settings.read(home)

    (line,) = (line for line in settings.oddities if name in line)
    assert settings.odd_variables[name] == meant
    assert meant in line
    assert ("meant" in line) == bool(meant)


def test_no_known_variable_is_reported(home, monkeypatch):
    before = Settings.read(home)
    for name in before.values:
        if name != "home":
            monkeypatch.setenv(f"AIOFLOW_{name.upper().replace('.', '__')}", "")
    for name in (
        "TOKEN",
        "DEBUG",
        "CHILD_ENV",
        "CHILD_OF",
        "LINK_FD",
        "BLACKBOX_FD",
        "LOG_NONCE",
        "TEST_X",
    ):
        monkeypatch.setenv(f"AIOFLOW_{name}", "1")
    monkeypatch.setenv("AIOFLOW_SLOTS", '{"cpu": 3}')

    settings = Settings.read(home)

    assert settings.odd_variables == before.odd_variables
    assert settings.cpu_slots == 3


def test_an_address_others_can_reach_has_to_be_meant(home):
    with pytest.raises(SettingsError, match="--allow-remote"):
        Settings.read(home, {"web.host": "0.0.0.0"})

    assert Settings.read(home, {"web.host": "0.0.0.0", "web.allow_remote": True}).allow_remote


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("::", False), ("example", False)],
)
def test_loopback_is_distinguished_from_the_rest(host, expected):
    assert is_loopback(host) is expected


def test_a_file_is_no_folder_of_dags(home, tmp_path):
    (tmp_path / "flow.py").touch()

    with pytest.raises(SettingsError, match=r"flow\.py is a file; name the folder it lies in"):
        Settings.read(home, {"dags": [str(tmp_path / "flow.py")]})


def test_dags_lie_here_if_there_are_any_and_else_at_home(home, tmp_path):
    assert Settings.read(home).dags == (home / "dags",)

    (tmp_path / "dags").mkdir()

    assert Settings.read(home).dags == (tmp_path / "dags",)


def test_folders_of_the_file_are_relative_to_it_and_others_to_where_we_are(
    home, tmp_path, monkeypatch
):
    write(home, 'dags = ["flows"]')
    assert Settings.read(home).dags == (home / "flows",)

    monkeypatch.setenv("AIOFLOW_DAGS", "one:/two")
    assert Settings.read(home).dags == (tmp_path / "one", Path("/two"))


def test_a_password_is_never_shown(home):
    settings = Settings.read(home, {"db.url": "postgresql://me:hunter2@db.example/flows"})

    assert settings.db == "postgresql://me:hunter2@db.example/flows"
    assert settings.shown_db == "postgresql://me:****@db.example/flows"
    assert "hunter2" not in str(settings.values)


def test_every_value_has_a_source(home):
    settings = Settings.read(home)

    assert settings.sources.keys() == settings.values.keys()


def test_all_names_of_a_home_lead_to_one_short_socket(tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    (tmp_path / "link").symlink_to(deep)

    assert socket_path(deep) == socket_path(tmp_path / "link")
    assert len(str(socket_path(deep))) <= SOCKET_PATH_LIMIT
    assert socket_path(Path("/srv/home")) == Path("/srv/home/run/aioflow.sock")


def test_the_home_is_absolute(monkeypatch, tmp_path):
    monkeypatch.delenv("AIOFLOW_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert find_home() == tmp_path / ".aioflow"
    assert find_home("here") == tmp_path / "here"


@pytest.mark.parametrize("url", [None, "postgresql://user@host/name"])
@pytest.mark.parametrize("means", ["file", "variable"])
def test_commands_that_read_the_database_use_the_same_one_as_the_daemon(
    tmp_path, monkeypatch, url, means
):
    if url and means == "file":
        (tmp_path / "aioflow.toml").write_text(f'db.url = "{url}"\n')
    if url and means == "variable":
        monkeypatch.setenv("aioflow_db__url", url)

    found, whole = Settings.of_database(tmp_path), Settings.read(tmp_path)

    assert url in {None, found.db}
    assert (found.home, found.db, found.key_file) == (whole.home, whole.db, whole.key_file)


def test_commands_that_read_the_database_report_a_wrong_setting(tmp_path):
    (tmp_path / "aioflow.toml").write_text("web.port = -1\n")

    with pytest.raises(SettingsError, match=r"web\.port"):
        Settings.of_database(tmp_path)


def test_executors_have_tables_with_values_of_their_own(home, monkeypatch):
    text = 'executor = "gpu"\n[executors.gpu]\nkind = "dask"\n[executors.gpu.tls]\nca = "secret"'
    write(home, text + "\n[executors.plain]")
    monkeypatch.setenv("AIOFLOW_EXECUTORS__GPU__ADDRESS", "tcp://x:1")

    settings = Settings.read(home)

    gpu = {"kind": "dask", "tls": {"ca": "secret"}, "address": "tcp://x:1"}
    assert settings.executors == {"gpu": gpu, "plain": {}}
    assert settings.executor == "gpu"
    assert settings.values["executors"] == ["gpu", "plain"]  # `config show` prints no value of it
    assert "aioflow.toml" in settings.sources["executors"]
