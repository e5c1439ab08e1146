"""A result that does not fit on a full disk is held in memory and written later."""

from __future__ import annotations

import errno
import os

import pytest

from aioflow.worker.task.outcome import write_result, write_result_in_thread


class Disk:
    """A disk that refuses the first writes."""

    def __init__(self, refusals: int, number: int = errno.ENOSPC) -> None:
        self.refusals = refusals
        self.writes = 0
        self._number = number

    def write(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(self._number, os.strerror(self._number), "/results/1")
        self.writes += 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_worker_writes_as_soon_as_the_disk_takes_it_with_longer_and_longer_pauses(number, capsys):
    disk, pauses, full = Disk(7, number), [], []

    write_result(disk.write, full.append, pauses.append)

    assert disk.writes == 1
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert full == 7 * [number in {errno.ENOSPC, errno.EDQUOT}]
    assert os.strerror(number) in capsys.readouterr().out


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_shared_host_does_so_without_holding_a_thread(capsys):
    disk, full = Disk(20), []

    await write_result_in_thread(disk.write, on_failed=full.append)

    assert disk.writes == 1
    assert full == 20 * [True]
    assert "is retried" in capsys.readouterr().out


def test_errors_other_than_those_of_the_disk_are_raised():
    def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_result(broken, list[bool]().append)
