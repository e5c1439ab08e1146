"""Lists on disk: read item by item, by many readers, in any order, and across files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from aioflow.results import read_item, read_items, read_one_item, write_list


def _open_files(folder):
    """Return how many files of a folder this process has open."""
    return sum(
        Path(os.path.realpath(link)).is_relative_to(folder)
        for link in Path("/proc/self/fd").iterdir()
    )


def _lists(folder, count):
    paths = [folder / str(number) for number in range(count)]
    for number, path in enumerate(paths):
        write_list(path, [b"%d-%d" % (number, item) for item in range(3)])
    return paths


def test_items_of_many_lists_are_read_in_turns(tmp_path):
    paths = _lists(tmp_path, 20)

    for item in range(3):
        for number, path in enumerate(paths):
            assert read_item(path, item) == b"%d-%d" % (number, item)


def test_many_lists_do_not_keep_many_files_open(tmp_path):
    paths = _lists(tmp_path, 40)
    for path in paths[:20]:
        read_item(path, 0)
    before = _open_files(tmp_path)

    for path in paths[20:]:
        read_item(path, 0)

    assert _open_files(tmp_path) == before


@pytest.mark.parametrize("index", [-1, 3, 2**62])
def test_an_item_behind_the_end_is_said_to_be_none(tmp_path, index):
    [path] = _lists(tmp_path, 1)

    with pytest.raises(IndexError, match="of a list of 3"):
        read_item(path, index)


@pytest.mark.parametrize("data", [b"", b"AFLIST1\n", b"something else altogether"])
def test_a_damaged_list_is_refused_and_closed_again(tmp_path, data):
    path = tmp_path / "list"
    path.write_bytes(data)
    before = _open_files(tmp_path)

    for _ in range(3):
        with pytest.raises(ValueError, match="damaged"):
            read_item(path, 0)

    assert _open_files(tmp_path) == before


def test_a_list_that_was_read_is_still_read_when_it_was_damaged_before(tmp_path):
    path = tmp_path / "list"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
        read_item(path, 0)
    write_list(path, [b"a", b"b"])

    assert read_item(path, 1) == b"b"
    assert read_items(path) == [b"a", b"b"]


def damaged_files():
    """Yield damaged versions of an indexed file of three items."""
    head, items = b"AFLIST1\n", b"abc"
    sound = head + struct.pack("<5Q", 3, 48, 49, 50, 51) + items
    yield sound[:20]
    yield sound[:-1]
    yield head + struct.pack("<Q", 2**63) + sound[16:]
    yield head + struct.pack("<5Q", 3, 48, 2**62, 50, 51) + items
    yield head + struct.pack("<5Q", 3, 51, 48, 50, 51) + items
    yield b"nothing" + sound


@pytest.mark.parametrize("content", list(damaged_files()), ids=range(6))
def test_a_damaged_list_is_said_to_be(tmp_path, content):
    path = tmp_path / "1"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="damaged"):
        read_items(path)
    with pytest.raises(ValueError, match="damaged"):
        _ = [read_one_item(path, index) for index in range(3)]
