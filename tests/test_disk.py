"""Reports on the free space of a disk."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from aioflow.filesystem import LEAST_BYTES, full_disk, require_space


def with_free(monkeypatch, free):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=1))


def test_a_disk_with_space_is_not_full(tmp_path, monkeypatch):
    with_free(monkeypatch, LEAST_BYTES)

    assert full_disk(tmp_path) == ""


def test_a_full_disk_is_named_with_what_is_free(tmp_path, monkeypatch):
    with_free(monkeypatch, 4096)

    assert full_disk(tmp_path) == f"the disk of {tmp_path} is full: 4,096 bytes are free"


def test_a_file_may_take_all_but_the_least_space(tmp_path, monkeypatch):
    with_free(monkeypatch, LEAST_BYTES + 100)

    require_space(tmp_path, 100)
    with pytest.raises(OSError, match="No space left") as raised:
        require_space(tmp_path, 101)
    assert raised.value.errno == errno.ENOSPC


def test_a_file_that_is_not_there_yet_is_on_the_disk_of_its_folder(tmp_path):
    assert full_disk(tmp_path / "no" / "such") == ""


def test_a_disk_that_cannot_be_examined_is_not_full(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError

    monkeypatch.setattr(os, "statvfs", refused)

    assert full_disk(tmp_path) == ""
