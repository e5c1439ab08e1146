"""An encrypted value can be decrypted only with its key, and only in its own row."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.crypto import Vault, new_key, write_keys
from aioflow.errors import SettingsError

OLD, NEW = b"o" * 32, b"n" * 32


@given(plaintext=st.binary(), table=st.text(), number=st.integers())
def test_encrypted_values_can_be_decrypted_in_their_row(plaintext, table, number):
    vault = Vault([NEW])

    assert vault.decrypt(table, number, vault.encrypt(table, number, plaintext)) == plaintext


@pytest.mark.parametrize(
    ("table", "number"), [("other", 7), ("trigger", 8)], ids=["other-table", "other-row"]
)
def test_it_opens_in_no_other_place(table, number):
    vault = Vault([NEW])

    assert vault.decrypt(table, number, vault.encrypt("trigger", 7, b"x")) is None


def test_no_two_envelopes_are_alike():
    vault = Vault([NEW])

    assert vault.encrypt("t", 1, b"x") != vault.encrypt("t", 1, b"x")


def test_the_first_key_seals_and_all_open():
    encrypted = Vault([OLD]).encrypt("t", 1, b"x")
    rotating = Vault([NEW, OLD])

    assert rotating.decrypt("t", 1, encrypted) == b"x"
    assert Vault([NEW]).decrypt("t", 1, encrypted) is None
    assert Vault([NEW]).decrypt("t", 1, rotating.encrypt("t", 1, b"y")) == b"y"


@pytest.mark.parametrize("place", [0, 1, 9, 21, -1], ids=str)
def test_an_envelope_with_one_bit_changed_does_not_open(place):
    vault = Vault([NEW])
    encrypted = bytearray(vault.encrypt("t", 1, b"plain"))
    encrypted[place] ^= 1

    assert vault.decrypt("t", 1, bytes(encrypted)) is None


@given(st.binary(max_size=60))
def test_unencrypted_bytes_cannot_be_decrypted(junk):
    assert Vault([NEW]).decrypt("t", 1, junk) is None


@pytest.mark.parametrize("keys", [[], [b"short"], [NEW, b"x" * 31]], ids=["none", "short", "one"])
def test_a_bad_key_is_refused(keys):
    with pytest.raises(SettingsError):
        Vault(keys)


# ── The key file ────────────────────────────────────────────────────────────────────────


def test_a_missing_key_file_is_created_for_its_owner_alone(tmp_path):
    path = tmp_path / "key"
    previous = os.umask(0)
    try:
        vault = Vault.open(path)
    finally:
        os.umask(previous)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32
    assert [file.name for file in tmp_path.iterdir()] == ["key"]
    assert Vault.open(path).decrypt("t", 1, vault.encrypt("t", 1, b"x")) == b"x"


def test_all_who_create_the_key_file_at_once_get_one_key(tmp_path):
    path = tmp_path / "key"
    with ThreadPoolExecutor(8) as threads:
        vaults = list(threads.map(Vault.open, [path] * 8))

    encrypted = vaults[0].encrypt("t", 1, b"x")
    assert {vault.decrypt("t", 1, encrypted) for vault in vaults} == {b"x"}


def test_a_key_file_may_hold_several_keys_the_newest_first(tmp_path):
    path = tmp_path / "key"
    new, old = new_key(), new_key()
    write_keys(path, [new, old])

    vault = Vault.open(path)

    assert vault.decrypt("t", 1, Vault([old]).encrypt("t", 1, b"x")) == b"x"
    assert Vault([new]).decrypt("t", 1, vault.encrypt("t", 1, b"x")) == b"x"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"abcd",
        b"zz" * 32,
        NEW,
        NEW.hex().encode()[:-2],
        b"\xff" * 64,
        b"0" * 64,
        b"abcd" * 16,
    ],
    ids=["empty", "blank", "short", "no-hex", "raw", "cut-off", "binary", "zeros", "placeholder"],
)
def test_a_key_file_with_anything_but_keys_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(SettingsError) as refused:
        Vault.open(path)

    assert path.read_bytes() == content
    assert "abcd" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "key"
    Vault.open(path)
    path.chmod(mode)

    with pytest.raises(SettingsError, match="chmod 600"):
        Vault.open(path)


def test_a_link_in_place_of_the_key_file_is_refused(tmp_path):
    real = tmp_path / "real"
    Vault.open(real)
    (tmp_path / "key").symlink_to(real)

    with pytest.raises(SettingsError):
        Vault.open(tmp_path / "key")


def test_a_pipe_in_place_of_the_key_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "key")

    with pytest.raises(SettingsError):
        Vault.open(tmp_path / "key")


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(SettingsError, match="no/key"):
        Vault.open(tmp_path / "no" / "key")
