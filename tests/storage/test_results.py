"""The contract that everything storing results has to meet."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.errors import ResultDamaged, ResultMissing, SettingsError, StorageUnavailable
from aioflow.results import write_list, write_value
from aioflow.storage.objects import ObjectStore, open_objects
from aioflow.storage.results import (
    CHUNK_BYTES,
    DatabaseResults,
    FileResults,
    ObjectResults,
    ResultStorage,
    SpoolDamaged,
    pack_result,
    read_spooled,
    unpack_result,
)
from aioflow.store import open_store
from tests.storage.fault_proxy import Fault

LARGE = os.urandom(200_000)
LAST = 2**63 - 1


def packed(key, content=b"content"):
    return pack_result(key, bytearray(content))


@pytest.fixture
def s3(bucket: str) -> ObjectStore:
    return open_objects(f"{bucket}/some/prefix", "results.url", stall_seconds=1.0)


@pytest.fixture(
    params=[
        "files",
        "folder",
        "s3",
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgres),
    ]
)
async def storage(request, tmp_path: Path) -> AsyncIterator[ResultStorage]:
    match request.param:
        case "files":
            yield FileResults(tmp_path / "results")
        case "folder":
            yield ObjectResults(open_objects(f"file://{tmp_path}/shared", "results.url"))
        case "s3":
            yield ObjectResults(request.getfixturevalue("s3"))
        case name:
            url = f"sqlite:///{tmp_path}/a.db"
            if name == "postgresql":
                url = request.getfixturevalue("postgres_url")
            async with open_store(url, Vault([b"k" * 32])) as store:
                await store.claim()
                yield DatabaseResults(store, SystemClock())


async def test_what_was_stored_is_read(storage):
    exact = b"x" * (CHUNK_BYTES - len(packed((1, 1), b"")))
    contents = {(1, 1): b"", (4096, 2): LARGE, (LAST - 1, LAST): b"x", (7, 1): exact}
    contents[8, 1] = exact + b"y" + exact
    for key, content in contents.items():
        await storage.put(key, packed(key, content))
        assert unpack_result(key, await storage.get(key)) == content


async def test_it_may_be_stored_again(storage):
    for content in (LARGE * 8, b"other", b"second" * 300_000):
        await storage.put((1, 1), packed((1, 1), content))
        assert unpack_result((1, 1), await storage.get((1, 1))) == content


async def test_what_is_not_stored_is_missing(storage):
    await storage.put((1, 1), packed((1, 1)))
    for key in ((1, 2), (2, 1), (10_000, 1)):
        with pytest.raises(ResultMissing):
            await storage.get(key)


async def test_deleting_deletes_those_and_no_others(storage):
    keys = [(1, 1), (1, 2), (11, 1), (5_000, 1)]
    for key in keys:
        await storage.put(key, packed(key))

    for _ in range(2):  # idempotent
        await storage.delete([(1, 1), (5_000, 1), (7, 7)])
    await storage.delete([])

    left = [
        one.key for block in await storage.list_blocks() for one in await storage.list_block(block)
    ]
    assert sorted(left) == [(1, 2), (11, 1)]


async def test_blocks_are_listed(storage):
    assert await storage.list_blocks() == []
    assert await storage.list_block(3) == []
    for key in ((1, 1), (40_000, 2), (40_000, 1)):
        await storage.put(key, packed(key))

    assert await storage.list_blocks() == [0, 9]
    found = await storage.list_block(9)
    assert sorted(one.key for one in found) == [(40_000, 1), (40_000, 2)]
    assert all(abs(one.stored_at / 1e6 - time.time()) < 600 for one in found)


async def test_a_block_of_several_pages_is_listed_and_deleted(bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "20")
    storage = ObjectResults(open_objects(bucket, "results.url"))
    keys = [(number, 1) for number in range(45)]
    for key in keys:
        await storage.put(key, packed(key, b""))

    assert sorted(one.key for one in await storage.list_block(0)) == keys
    await storage.delete(keys)
    assert await storage.list_block(0) == []


DAMAGES = {
    "cut": lambda data: data[:-1],
    "cut to nothing": lambda data: b"",
    "longer": lambda data: data + b"\0",
    "a bit": lambda data: data[:3] + bytes([data[3] ^ 1]) + data[4:],
    "its checksum": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "of another start": lambda data: bytes(packed((1, 2))),
    "of another task": lambda data: bytes(packed((2, 1))),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_detected(damage):
    data = bytes(packed((1, 1)))
    assert unpack_result((1, 1), data) == b"content"
    with pytest.raises(ResultDamaged):
        unpack_result((1, 1), damage(data))


@pytest.mark.parametrize("status", [500, 503, 403])
async def test_a_refusal_of_the_store_is_told_and_the_next_attempt_succeeds(s3, proxy, status):
    storage = ObjectResults(s3)
    for request in (
        lambda: storage.put((1, 1), packed((1, 1))),
        lambda: storage.get((1, 1)),
        lambda: storage.list_block(0),
        lambda: storage.list_blocks(),
        lambda: storage.delete([(1, 1)]),
    ):
        proxy.faults.append(Fault(status))
        with pytest.raises(StorageUnavailable):
            await request()
        await request()


@pytest.mark.parametrize("cut_after", [0, 1, 100_000])
async def test_an_answer_that_is_cut_is_no_result(s3, proxy, cut_after):
    storage = ObjectResults(s3)
    await storage.put((1, 1), packed((1, 1), LARGE))
    proxy.faults.append(Fault(cut_after=cut_after))
    with pytest.raises(StorageUnavailable):
        await storage.get((1, 1))
    assert unpack_result((1, 1), await storage.get((1, 1))) == LARGE


async def test_a_store_that_stalls_is_given_up(s3, proxy):
    storage = ObjectResults(s3)
    proxy.faults.append(Fault(stall_seconds=600))
    with pytest.raises(StorageUnavailable, match="no answer"):
        await storage.put((1, 1), packed((1, 1)))


async def test_a_bucket_that_does_not_exist_is_unavailable(bucket):
    storage = ObjectResults(open_objects(f"{bucket}-none", "results.url"))
    with pytest.raises(StorageUnavailable):
        await storage.put((1, 1), packed((1, 1)))


@pytest.fixture(params=["folder", "s3"])
def objects(request, tmp_path: Path) -> ObjectStore:
    if request.param == "s3":
        return request.getfixturevalue("s3")
    return open_objects(f"file://{tmp_path}/shared", "results.url")


async def test_only_one_of_two_databases_becomes_the_owner(objects, monkeypatch):
    get = objects.get

    async def get_slowly(name: str, size: int = 0) -> bytes:
        monkeypatch.setattr(objects, "get", get)
        try:
            return await get(name, size)
        finally:
            assert await objects.owner("faster") == "faster"

    monkeypatch.setattr(objects, "get", get_slowly)
    assert await objects.owner("slower") == "faster"
    assert await objects.owner("faster") == "faster"


async def test_a_store_that_cannot_refuse_a_second_object_has_an_owner(s3, proxy):
    proxy.faults += [Fault(), Fault(501)]
    assert await s3.owner("first") == "first"
    assert await s3.owner("second") == "first"


async def test_a_folder_without_hard_links_has_an_owner(tmp_path, monkeypatch):
    objects = open_objects(f"file://{tmp_path}/shared", "results.url")
    write = objects._write

    async def refuse(name: str, data: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise GenericError("Unable to rename file: Operation not permitted (os error 1)")
        await write(name, data, mode)

    monkeypatch.setattr(objects, "_write", refuse)
    assert await objects.owner("first") == "first"
    assert await objects.owner("second") == "first"


async def test_an_outage_makes_nobody_the_owner(s3, proxy):
    proxy.faults += [Fault(), Fault(503)]
    with pytest.raises(StorageUnavailable):
        await s3.owner("first")
    assert await s3.owner("second") == "second"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/a",
        "bucket",
        "s3://key:secret@bucket",
        "az://c/p?sig=secret",
        "file://a/b",
        "file:///",
    ],
)
def test_urls_that_cannot_be_used_are_refused_without_their_secrets(url):
    with pytest.raises(SettingsError, match="results.url") as refused:
        open_objects(url, "results.url")
    assert "secret" not in str(refused.value)


class TestSpool:
    """The files that the process of a try leaves for the daemon, which may contain anything."""

    def test_a_result_is_read(self, tmp_path):
        write_value(tmp_path / "0" / "1.1", LARGE)
        assert (
            unpack_result((1, 1), bytes(read_spooled(tmp_path, (1, 1), len(LARGE)).data)) == LARGE
        )

    def test_a_list_is_read(self, tmp_path):
        path = tmp_path / "0" / "1.1"
        write_list(path, [b"a", b"bc"])
        data = read_spooled(tmp_path, (1, 1), path.stat().st_size).data
        assert unpack_result((1, 1), bytes(data)) == path.read_bytes()

    @pytest.mark.parametrize("size", [-1, 2**40])
    def test_a_size_that_no_result_has_is_refused_before_any_memory_is_taken(self, tmp_path, size):
        write_value(tmp_path / "0" / "1.1", b"x")
        with (tmp_path / "0" / "1.1").open("r+b") as file:
            file.truncate(max(size, 0))  # a sparse file
        with pytest.raises(SpoolDamaged, match="reported"):
            read_spooled(tmp_path, (1, 1), size)

    @pytest.mark.parametrize("kind", ["none", "link", "linked folder", "fifo", "folder", "size"])
    def test_anything_else_is_refused(self, tmp_path, kind):
        secret = tmp_path / "key"
        secret.write_bytes(b"0123456789")
        spool = tmp_path / "results"
        path = spool / "0" / "1.1"
        if kind == "linked folder":
            (tmp_path / "elsewhere").mkdir()
            (tmp_path / "elsewhere" / "1.1").write_bytes(b"0123456789")
            spool.mkdir()
            (spool / "0").symlink_to(tmp_path / "elsewhere")
        else:
            path.parent.mkdir(parents=True)
        if kind == "link":
            path.symlink_to(secret)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "size":
            path.write_bytes(b"012345678")
        with pytest.raises(SpoolDamaged):
            read_spooled(spool, (1, 1), 10)
