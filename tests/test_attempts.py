"""Guessing takes for ever, whoever guesses from wherever, and shuts out nobody who has been in."""

from __future__ import annotations

import anyio
import pytest
from argon2.exceptions import VerifyMismatchError

from aioflow.api import passwords as passwords_module
from aioflow.api.attempts import Attempts
from aioflow.api.passwords import Passwords
from aioflow.errors import TooManyLogins


def tries(attempts: Attempts, name: str, address: str, now: float) -> int:
    """Return how many tries there are at once, a hundred at most."""
    for number in range(100):
        try:
            attempts.begin(name, address, now)
        except TooManyLogins:
            return number
    return 100


def test_an_address_has_ten_tries_whatever_the_name_and_one_more_every_six_seconds():
    attempts = Attempts()

    assert sum(tries(attempts, f"name{n}", "10.0.0.1", 0.0) for n in range(20)) == 10
    assert tries(attempts, "other", "10.0.0.1", 5.9) == 0
    assert tries(attempts, "other", "10.0.0.1", 12.1) == 2
    assert tries(attempts, "other2", "10.0.0.1", 1e6) == 10


def test_a_name_has_ten_tries_whatever_the_address():
    attempts = Attempts()

    assert sum(tries(attempts, "anna", f"10.0.0.{n}", 0.0) for n in range(50)) == 10


def test_where_a_name_has_been_in_its_tries_are_its_own():
    attempts = Attempts()
    attempts.begin("anna", "10.0.0.1", 0.0)
    attempts.succeed("anna", "10.0.0.1", 0.0)

    assert tries(attempts, "anna", "10.0.0.9", 0.0) <= 10
    assert tries(attempts, "bob", "10.0.0.1", 0.0) <= 10
    assert tries(attempts, "anna", "10.0.0.1", 0.0) == 10


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "10.0.0.2", False),
    ],
)
def test_addresses_that_somebody_has_together_count_together(first, second, is_same):
    attempts = Attempts()
    for n in range(10):
        attempts.begin(f"name{n}", first, 0.0)

    assert tries(attempts, "another", second, 0.0) == (0 if is_same else 10)


def test_a_login_that_succeeds_costs_none():
    attempts = Attempts()
    for _ in range(1_000):
        attempts.begin("anna", "10.0.0.1", 0.0)
        attempts.succeed("anna", "10.0.0.1", 0.0)


def test_what_it_remembers_has_a_bound():
    attempts = Attempts()
    for number in range(30_000):
        attempts.begin(f"n{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)

    assert len(attempts._buckets) <= 10_000


# ── passwords ───────────────────────────────────────────────────────────────────────────


async def test_a_password_is_known_again_and_no_other_is():
    passwords = Passwords()
    secret = await passwords.hashed("a horse, a battery")

    assert await passwords.matches(secret, "a horse, a battery")
    assert not await passwords.matches(secret, "a horse, a batterz")
    assert not await passwords.matches(None, "a horse, a battery")
    assert not await passwords.matches(secret, "x" * 5_000)
    assert b"horse" not in secret


def test_where_there_is_no_user_a_real_hash_is_compared_with():
    with pytest.raises(VerifyMismatchError):
        passwords_module._hasher.verify(passwords_module._NOBODY, "anything")
    assert not passwords_module._hasher.check_needs_rehash(passwords_module._NOBODY.decode())


async def test_who_comes_while_too_many_wait_is_sent_away():
    passwords = Passwords()
    refused = 0

    async def guess() -> None:
        nonlocal refused
        try:
            await passwords.matches(None, "guess")
        except TooManyLogins:
            refused += 1

    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(guess)

    assert refused == 40 - 16
