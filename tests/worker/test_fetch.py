"""The code of a version is written as a whole, and never outside its folder."""

from __future__ import annotations

import msgspec
import pytest

from aioflow.worker.code.fetch import read_version, write_version


def packed(**files: bytes) -> bytes:
    return msgspec.msgpack.encode(files)


def test_a_version_is_written_as_it_was_read(tmp_path):
    there = tmp_path / "there" / "v1"
    (there / "helpers").mkdir(parents=True)
    (there / "flow.py").write_bytes(b"import helpers.one")
    (there / "helpers" / "one.py").write_bytes(b"\xff\x00")

    write_version(tmp_path / "here" / "v1", read_version(there))

    here = tmp_path / "here" / "v1"
    assert (here / "flow.py").read_bytes() == b"import helpers.one"
    assert (here / "helpers" / "one.py").read_bytes() == b"\xff\x00"
    assert [path.name for path in here.parent.iterdir()] == ["v1"]


def test_a_version_that_is_not_there_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_version(tmp_path / "v1")


def test_the_first_of_two_processes_wins(tmp_path):
    write_version(tmp_path / "v1", packed(a=b"first"))
    write_version(tmp_path / "v1", packed(a=b"second"))

    assert (tmp_path / "v1" / "a").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_nothing_is_written_outside(tmp_path, name):
    with pytest.raises(ValueError, match="not a path within a version"):
        write_version(tmp_path / "code" / "v1", packed(**{name: b""}))

    assert not list(tmp_path.rglob("evil"))
    assert not list((tmp_path / "code").iterdir())


def test_what_is_no_version_is_refused(tmp_path):
    with pytest.raises(ValueError, match="."):
        write_version(tmp_path / "v1", b"\xff")
