"""The key of a home, and the encryption of secret values in its database."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aioflow.errors import SettingsError
from aioflow.filesystem import sync_folder

__all__ = ("KEY_BYTES", "Vault", "new_key", "read_keys", "write_keys")

KEY_BYTES = 32

_SIGNING = b"aioflow signatures"
"""Derives the key for signatures from a key for encryption."""

_FORMAT = b"\x01"
_ID_BYTES = 8
_NONCE_BYTES = 12
_HEAD_BYTES = len(_FORMAT) + _ID_BYTES + _NONCE_BYTES
_TAG_BYTES = 16
_FILE_LIMIT = 64 * 1024
_DIFFERENT = 8
"""Minimum number of different bytes in a key; a random key has about 30."""


class Vault:
    """Encrypts values with AES-256-GCM, each bound to the table and row that it belongs to.

    A value that is moved to another row cannot be decrypted there. The envelope names the key, so
    that a home may have several keys while one replaces another::

        format: 1 byte  key id: 8  nonce: 12  ciphertext and tag

    Nonces are random, which is safe for about 2**32 values under one key.

    Args:
        keys: Keys of 32 bytes. The first one encrypts; all of them decrypt.

    Raises:
        SettingsError: If there is no key, or a key is not 32 bytes long.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise SettingsError("there is no encryption key")
        if any(len(key) != KEY_BYTES for key in keys):
            raise SettingsError(f"an encryption key must be {KEY_BYTES} bytes long")
        self.use(keys)

    def use(self, keys: Sequence[bytes]) -> None:
        """Encrypt with the first of these keys from now on, and decrypt only with these."""
        ciphers = {_key_id(key): AESGCM(key) for key in keys}
        first = _key_id(keys[0])
        # Each attribute is replaced as a whole: other threads see the old or the new value.
        self._ciphers = ciphers
        self._cipher = _FORMAT + first, ciphers[first]
        self._ids = frozenset(ciphers)
        self._signing = tuple(_mac(key, _SIGNING) for key in keys)

    def has_only(self, keys: Sequence[bytes]) -> bool:
        """Return whether all keys of this vault are among ``keys``."""
        return self._ids <= {_key_id(key) for key in keys}

    @classmethod
    def open(cls, path: Path) -> Vault:
        """Read the key file, or create it with a new key if there is none.

        The file has one key per line, in hex, newest first. Two processes that create it at the
        same time get the same key.

        Raises:
            SettingsError: If the file cannot be read or created, is a link or not a regular file,
                is readable by others, or contains anything but random keys.
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
            raise SettingsError(f"the key file {path} holds a key that is easy to guess")
        return cls(keys)

    def sign(self, purpose: str, data: bytes) -> bytes:
        """Return the signature of data (HMAC-SHA256), which is valid for this purpose only."""
        return _mac(self._signing[0], purpose.encode() + b"\0" + data)

    def has_signed(self, purpose: str, data: bytes, signature: bytes) -> bool:
        """Return whether a key of this vault has signed the data for this purpose."""
        message = purpose.encode() + b"\0" + data
        return any(hmac.compare_digest(_mac(key, message), signature) for key in self._signing)

    def encrypt(self, table: str, number: int, plaintext: bytes) -> bytes:
        """Encrypt a value and return its envelope, which differs at every call."""
        nonce = os.urandom(_NONCE_BYTES)
        head, cipher = self._cipher
        return head + nonce + cipher.encrypt(nonce, plaintext, _associated_data(table, number))

    def decrypt(self, table: str, number: int, envelope: bytes) -> bytes | None:
        """Return the plaintext; ``None`` if no key of this vault decrypts it for this row."""
        if len(envelope) < _HEAD_BYTES + _TAG_BYTES or envelope[:1] != _FORMAT:
            return None
        cipher = self._ciphers.get(envelope[1 : 1 + _ID_BYTES])
        if cipher is None:
            return None
        nonce = envelope[1 + _ID_BYTES : _HEAD_BYTES]
        try:
            return cipher.decrypt(nonce, envelope[_HEAD_BYTES:], _associated_data(table, number))
        except InvalidTag:
            return None


def read_keys(path: Path) -> list[bytes]:
    """Return the keys of a file, newest first.

    Raises:
        SettingsError: See ``Vault.open``; also if there is no such file.
    """
    try:
        text = _read(path)
    except OSError as exc:
        raise SettingsError(f"the key file {path} cannot be used: {exc.strerror}") from exc
    if text is None:
        raise SettingsError(f"the key file {path} was deleted")
    return _parsed(path, text)


def new_key() -> bytes:
    """Return a new random key."""
    return secrets.token_bytes(KEY_BYTES)


def write_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Replace the keys in the file atomically and durably, even if power fails.

    Raises:
        SettingsError: If the file cannot be written. Its content is then unchanged.
    """
    text = b"".join(key.hex().encode() + b"\n" for key in keys)
    try:
        temporary = _written(path, text)
        try:
            Path(temporary).replace(path)
        except OSError:
            temporary.unlink()
            raise
        sync_folder(path.parent)
    except OSError as exc:
        raise SettingsError(f"the key file {path} cannot be written: {exc.strerror}") from exc


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"aioflow key id\0" + key).digest()[:_ID_BYTES]


def _associated_data(table: str, number: int) -> bytes:
    return f"{table}:{number}".encode()


def _parsed(path: Path, text: bytes) -> list[bytes]:
    try:
        keys = [bytes.fromhex(line) for line in text.decode("ascii").split()]
    except ValueError:
        # Do not show the text: a malformed key is secret, too.
        raise SettingsError(f"the key file {path} must hold keys in hex, one a line") from None
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise SettingsError(
            f"the key file {path} must hold keys of {2 * KEY_BYTES} hex digits, one a line"
        )
    return keys


def _read(path: Path) -> bytes | None:
    # Open without blocking, because a named pipe in place of the file would block forever.
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
    """Create the file atomically, unless another process has created it by then."""
    temporary = _written(path, secrets.token_hex(KEY_BYTES).encode() + b"\n")
    try:
        os.link(temporary, path)  # unlike a rename, this never replaces the key of another process
    except FileExistsError:
        return
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def _written(path: Path, text: bytes) -> Path:
    """Write and sync a temporary file in the folder of the target. Return its path."""
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
