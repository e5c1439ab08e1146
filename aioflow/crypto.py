"""The key of a home, and the sealing of what must not lie open in its database."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aioflow.errors import SettingsError

__all__ = ("KEY_BYTES", "Vault", "new_key", "read_keys", "write_keys")

KEY_BYTES = 32

_FORMAT = b"\x01"
_ID_BYTES = 8
_NONCE_BYTES = 12
_HEAD_BYTES = len(_FORMAT) + _ID_BYTES + _NONCE_BYTES
_TAG_BYTES = 16
_FILE_LIMIT = 64 * 1024
_DIFFERENT = 8
"""Bytes of a key that differ, at least: of a drawn one about thirty do."""


class Vault:
    """Seals with AES-256-GCM, bound to the table and row a value belongs to.

    A sealed value moved to another row does not open there. The envelope names its key, so
    that a home may hold several while one replaces another::

        format: 1 byte  key id: 8  nonce: 12  ciphertext and tag

    A nonce is random, which is safe for some 2**32 values under one key.

    Args:
        keys: 32 bytes each. The first one seals; all of them open.

    Raises:
        SettingsError: If there is no key, or one is not 32 bytes long.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise SettingsError("there is no encryption key")
        if any(len(key) != KEY_BYTES for key in keys):
            raise SettingsError(f"an encryption key must be {KEY_BYTES} bytes long")
        self.use(keys)

    def use(self, keys: Sequence[bytes]) -> None:
        """Seal with the first of these from now on, and open with all of them and no other."""
        ciphers = {_key_id(key): AESGCM(key) for key in keys}
        first = _key_id(keys[0])
        # Each is replaced whole: a thread that seals meanwhile has the one before, or this one.
        self._ciphers = ciphers
        self._sealer = _FORMAT + first, ciphers[first]
        self._ids = frozenset(ciphers)

    def has_only(self, keys: Sequence[bytes]) -> bool:
        """Whether what it opens now is what these open, or less."""
        return self._ids <= {_key_id(key) for key in keys}

    @classmethod
    def open(cls, path: Path) -> Vault:
        """Read the key file, or create it with a new key if there is none.

        One key a line, in hex, the newest first. Two processes that create it at once end
        up with the same key.

        Raises:
            SettingsError: If the file cannot be read or created, is a link or no regular
                file, is for others to read, or holds anything but keys that were drawn.
        """
        try:
            text = _read(path)
            if text is None:
                _create(path)
                text = _read(path)
        except OSError as exc:
            raise SettingsError(f"the key file {path} cannot be used: {exc.strerror}") from exc
        if text is None:
            raise SettingsError(f"the key file {path} was removed while it was being created")
        keys = _parsed(path, text)
        if any(len(set(key)) < _DIFFERENT for key in keys):
            raise SettingsError(f"the key file {path} holds a key that anybody could guess")
        return cls(keys)

    def seal(self, table: str, number: int, plaintext: bytes) -> bytes:
        """Return the envelope; it differs at every call."""
        nonce = os.urandom(_NONCE_BYTES)
        head, sealer = self._sealer
        return head + nonce + sealer.encrypt(nonce, plaintext, _place(table, number))

    def unseal(self, table: str, number: int, sealed: bytes) -> bytes | None:
        """Return the plaintext, or ``None`` if no key at hand opens it here."""
        if len(sealed) < _HEAD_BYTES + _TAG_BYTES or sealed[:1] != _FORMAT:
            return None
        cipher = self._ciphers.get(sealed[1 : 1 + _ID_BYTES])
        if cipher is None:
            return None
        nonce = sealed[1 + _ID_BYTES : _HEAD_BYTES]
        try:
            return cipher.decrypt(nonce, sealed[_HEAD_BYTES:], _place(table, number))
        except InvalidTag:
            return None


def read_keys(path: Path) -> list[bytes]:
    """Return the keys of a file, the newest first.

    Raises:
        SettingsError: As ``Vault.open``, and if there is no such file.
    """
    try:
        text = _read(path)
    except OSError as exc:
        raise SettingsError(f"the key file {path} cannot be used: {exc.strerror}") from exc
    if text is None:
        raise SettingsError(f"the key file {path} is not there any more")
    return _parsed(path, text)


def new_key() -> bytes:
    """Return a key that nobody has."""
    return secrets.token_bytes(KEY_BYTES)


def write_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Have the file hold these keys, whole or not at all, also over a power cut.

    Raises:
        SettingsError: If it cannot be written; then it holds what it held.
    """
    text = b"".join(key.hex().encode() + b"\n" for key in keys)
    try:
        temporary = _written(path, text)
        try:
            Path(temporary).replace(path)
        except OSError:
            temporary.unlink()
            raise
        _sync_folder(path)
    except OSError as exc:
        raise SettingsError(f"the key file {path} cannot be written: {exc.strerror}") from exc


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"aioflow key id\0" + key).digest()[:_ID_BYTES]


def _place(table: str, number: int) -> bytes:
    return f"{table}:{number}".encode()


def _parsed(path: Path, text: bytes) -> list[bytes]:
    try:
        keys = [bytes.fromhex(line) for line in text.decode("ascii").split()]
    except ValueError:
        # The text is not shown: what is almost a key is secret, too.
        raise SettingsError(f"the key file {path} must hold keys in hex, one a line") from None
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise SettingsError(
            f"the key file {path} must hold keys of {2 * KEY_BYTES} hex digits, one a line"
        )
    return keys


def _read(path: Path) -> bytes | None:
    # Not blocking, or a named pipe in its place would hold us forever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        return None
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise SettingsError(f"the key file {path} is not a regular file")
        if mode & 0o077:
            raise SettingsError(f"others can read the key file {path}; run: chmod 600 {path}")
        return os.read(handle, _FILE_LIMIT)
    finally:
        os.close(handle)


def _create(path: Path) -> None:
    """Create the file whole or not at all; one that appears meanwhile is left as it is."""
    temporary = _written(path, secrets.token_hex(KEY_BYTES).encode() + b"\n")
    try:
        os.link(temporary, path)  # unlike a rename it never replaces another's key
    except FileExistsError:
        return
    finally:
        temporary.unlink()
    _sync_folder(path)


def _written(path: Path, text: bytes) -> Path:
    """Write a text beside a file, synced; return where."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600)
    try:
        os.write(handle, text)
        os.fsync(handle)
    except OSError:
        temporary.unlink()
        raise
    finally:
        os.close(handle)
    return temporary


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
