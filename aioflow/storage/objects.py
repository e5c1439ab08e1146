"""Objects under one URL: in S3, Google Cloud Storage, Azure, or a shared folder.

The driver takes its credentials from the environment of the daemon and the permissions of the
machine. No child process opens a store.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import anyio

from aioflow._threads import in_thread
from aioflow.errors import ObjectMissing, SettingsError, StorageUnavailable
from aioflow.filesystem import make_folder
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.redaction import masked_urls

__all__ = ("SCHEMES", "ObjectStore", "StoredObject", "open_objects")

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "file")

STALL_SECONDS = 30.0
"""Time limit of a request, in addition to the time that its bytes take at the minimum rate."""

_LEAST_BYTES_PER_SECOND = 256 * 1024
_LONGEST = timedelta(minutes=10)
_CONNECT = timedelta(seconds=10)
_LIST_PAGE = 1_000
_OWNER = "aioflow-owner"

_NO_CREATE = ("501 Not Implemented", "(os error 1)", "(os error 38)", "(os error 95)")
"""Parts of the errors of stores without conditional writes, and of folders without hard links."""

Answer = TypeVar("Answer")


class StoredObject(NamedTuple):
    """An object in a listing.

    Attributes:
        stored_at: When it was stored, by the clock of the store.
    """

    name: str
    size: int
    stored_at: Timestamp


class ObjectStore:
    """The objects under one URL. Names are relative to it.

    An object exists completely or not at all. Each method makes one attempt. The caller decides
    whether and when to retry.

    Args:
        folder: The folder, if the store is one.

    Raises:
        StorageUnavailable: From every method, if the store does not answer or refuses the request.
    """

    def __init__(
        self, store: Any, folder: Path | None = None, *, stall_seconds: float = STALL_SECONDS
    ) -> None:
        import obstore  # slow to import, and an optional package

        self._driver: Any = obstore
        self._store = store
        self._folder = folder
        self._stall_seconds = stall_seconds

    async def put(self, name: str, data: bytes | bytearray) -> None:
        """Store an object durably. An existing object of this name is replaced."""
        await self._store_with(self._write(name, data), name, len(data))

    async def _store_with(self, work: Awaitable[None], name: str, size: int) -> None:
        try:
            await self._limited(work, size)
        except ObjectMissing as exc:
            raise StorageUnavailable(f"the bucket does not exist: {exc}") from exc
        if self._folder is not None:
            await self._in_folder(_sync, self._folder / name, self._folder)

    async def _write(self, name: str, data: bytes | bytearray, mode: str = "overwrite") -> None:
        await self._driver.put_async(self._store, name, data, mode=mode, use_multipart=False)

    async def _create(self, name: str, data: bytes) -> None:
        """Write an object unless it exists."""
        try:
            await self._write(name, data, "create")
        except self._driver.exceptions.AlreadyExistsError:
            pass
        except (self._driver.exceptions.BaseError, NotImplementedError) as exc:
            if not _cannot_create(exc):
                raise
            # Such a store cannot decide which of two databases is first, if both begin at the same
            # time.
            await self._write(name, data)

    async def get(self, name: str, size: int = 0) -> bytes:
        """Return a whole object.

        Args:
            size: The expected size, which determines the time limit.

        Raises:
            ObjectMissing: If there is no such object.
        """
        return await self._limited(self._whole(name), size)

    async def _whole(self, name: str) -> bytes:
        found = await self._driver.get_async(self._store, name)
        return bytes(await found.bytes_async())

    async def owner(self, mark: str) -> str:
        """Return the mark of the database that uses this store. The first mark is stored."""
        try:
            return (await self.get(_OWNER)).decode(errors="replace")
        except ObjectMissing:
            data = mark.encode()
            await self._store_with(self._create(_OWNER, data), _OWNER, len(data))
            return (await self.get(_OWNER)).decode(errors="replace")

    async def delete(self, names: Collection[str]) -> None:
        """Delete objects. Missing objects are ignored."""
        if not names:
            return
        if self._folder is not None:
            await self._in_folder(_unlink, [self._folder / name for name in names])
            return
        with suppress(ObjectMissing):
            await self._limited(self._driver.delete_async(self._store, sorted(names)), 0)

    async def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield the objects whose names begin with ``prefix`` and a slash, in arbitrary order."""
        stream = self._driver.list(self._store, f"{prefix}/", chunk_size=_LIST_PAGE)
        while True:
            try:
                page = await self._limited(_next_page(stream), 0)
            except ObjectMissing:  # the folder or the bucket is missing
                return
            if page is None:
                return
            for meta in page:
                yield StoredObject(meta["path"], meta["size"], to_timestamp(meta["last_modified"]))

    async def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders right below a prefix, without the prefix."""
        work = self._driver.list_with_delimiter_async(self._store, f"{prefix}/")
        try:
            found = await self._limited(work, 0)
        except ObjectMissing:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    async def _limited(self, work: Awaitable[Answer], size: int) -> Answer:
        """Await a request with a time limit. Translate the errors of the driver."""
        seconds = self._stall_seconds + size / _LEAST_BYTES_PER_SECOND
        try:
            with anyio.fail_after(seconds):
                return await work
        except FileNotFoundError as exc:
            raise ObjectMissing(_first_line(exc)) from exc
        except TimeoutError as exc:
            raise StorageUnavailable(f"no answer within {seconds:g} s") from exc
        except (self._driver.exceptions.BaseError, OSError, ValueError) as exc:
            raise StorageUnavailable(_first_line(exc)) from exc

    async def _in_folder(self, work: Any, *arguments: Any) -> None:
        try:
            await in_thread(work, *arguments)
        except OSError as exc:
            raise StorageUnavailable(str(exc)) from exc


async def _next_page(stream: Any) -> Any:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return None


def _first_line(exc: Exception) -> str:
    return masked_urls(str(exc).partition("\n")[0])[:500] or type(exc).__name__


def _cannot_create(exc: Exception) -> bool:
    """Return whether an error means that the store does not support conditional creation."""
    name, text = type(exc).__name__, str(exc)
    return name in {"NotSupportedError", "NotImplementedError"} or any(
        sign in text for sign in _NO_CREATE
    )


def _sync(path: Path, root: Path) -> None:
    """Sync a file and its folders. The driver does not do this, but a commit relies on the file."""
    below = path.relative_to(root).parents
    for place in (path, *(root / folder for folder in below)):
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _unlink(paths: Collection[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        with suppress(OSError):  # the folder contains other objects
            folder.rmdir()


def open_objects(url: str, setting: str, *, stall_seconds: float = STALL_SECONDS) -> ObjectStore:
    """Open the store of a URL. This sends no request.

    Args:
        setting: The setting that contains the URL, for error messages.

    Raises:
        SettingsError: If the URL or an option in the environment is invalid, or the package
            ``obstore`` is not installed.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise SettingsError(f"{setting}: {parts.scheme!r} is none of {', '.join(SCHEMES)}")
    if parts.query or "@" in parts.netloc:
        raise SettingsError(
            f"{setting}: the URL may not contain credentials or options; set them as variables in "
            "the environment of the daemon, such as AWS_ACCESS_KEY_ID"
        )
    try:
        import obstore.exceptions
        from obstore.store import LocalStore, from_url
    except ImportError as exc:
        raise SettingsError(
            f"{setting} needs the package obstore; install aioflow-engine[objects]"
        ) from exc
    if parts.scheme == "file":
        return _open_folder(LocalStore, parts.netloc, unquote(parts.path), setting, stall_seconds)
    try:
        store = from_url(
            url,
            client_options={
                "timeout": _LONGEST,
                "connect_timeout": _CONNECT,
                "allow_http": _is_plain(),  # these options override AWS_ALLOW_HTTP
            },
            retry_config={"max_retries": 0, "retry_timeout": _CONNECT},
        )
    except (obstore.exceptions.BaseError, ValueError) as exc:
        raise SettingsError(f"{setting}: {_first_line(exc)}") from None
    return ObjectStore(store, stall_seconds=stall_seconds)


def _is_plain() -> bool:
    """Return whether a variable names an endpoint without TLS, such as a server on this machine."""
    return any(
        value.startswith("http://")
        for name, value in os.environ.items()
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) and "ENDPOINT" in name
    )


def _open_folder(
    local_store: Any, host: str, path: str, setting: str, stall_seconds: float
) -> ObjectStore:
    folder = Path(path)
    if host or not folder.is_absolute() or folder == Path("/"):
        raise SettingsError(f"{setting}: write the folder as file:///path/of/the/folder")
    try:
        make_folder(folder)
    except OSError as exc:
        raise SettingsError(f"{setting}: {folder} cannot be created: {exc.strerror}") from exc
    return ObjectStore(local_store(folder, mkdir=True), folder, stall_seconds=stall_seconds)
