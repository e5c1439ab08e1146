"""Guessing passwords is too slow from any address, and locks out no user who has logged in."""

from __future__ import annotations

import anyio
import pytest
from argon2.exceptions import VerifyMismatchError

from aioflow.api.access.authentication import Passwords
from aioflow.api.access.login_throttle import LoginThrottle
from aioflow.errors import TooManyLogins


def tries(
    attempts: LoginThrottle, name: str, address: str, now: float, *, is_user: bool = True
) -> int:
    """Return how many attempts are allowed at once, up to a hundred."""
    for number in range(100):
        try:
            attempts.begin(name, address, now, is_user=is_user)
        except TooManyLogins:
            return number
    return 100


def address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def test_an_address_has_ten_tries_whatever_the_name_and_one_more_every_six_seconds():
    attempts = LoginThrottle()

    assert sum(tries(attempts, f"name{n}", "10.0.0.1", 0.0) for n in range(20)) == 10
    assert tries(attempts, "other", "10.0.0.1", 5.9) == 0
    assert tries(attempts, "other", "10.0.0.1", 12.1) == 2
    assert tries(attempts, "other2", "10.0.0.1", 1e6) == 10


@pytest.mark.parametrize("is_user", [True, False])
def test_a_name_has_thirty_tries_whatever_the_address(is_user):
    attempts = LoginThrottle()

    found = [tries(attempts, "anna", address(n), 0.0, is_user=is_user) for n in range(50)]

    assert sum(found) == 30
    assert tries(attempts, "anna", "10.9.9.9", 4.0, is_user=is_user) == 2


def test_guessing_from_one_address_does_not_lock_out_a_name():
    attempts = LoginThrottle()
    taken = sum(tries(attempts, "anna", "10.0.0.1", float(second)) for second in range(3_600))

    assert taken <= 10 + 3_600 / 6
    assert tries(attempts, "anna", "10.0.0.2", 3_600.0) == 10


def test_an_address_where_a_name_has_logged_in_has_its_own_attempts():
    attempts = LoginThrottle()
    attempts.begin("anna", "10.0.0.1", 0.0, is_user=True)
    attempts.succeed("anna", "10.0.0.1", 0.0)
    for n in range(50):
        tries(attempts, "anna", address(n + 256), 0.0)

    assert tries(attempts, "anna", "10.0.0.9", 0.0) == 0
    assert tries(attempts, "bob", "10.0.0.1", 0.0) == 10
    assert tries(attempts, "anna", "10.0.0.1", 0.0) == 10


def test_so_it_is_where_a_life_before_has_seen_it():
    attempts = LoginThrottle()
    attempts.remember("anna", "10.0.0.1")
    for n in range(50):
        tries(attempts, "anna", address(n + 256), 0.0)

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
def test_addresses_of_one_client_count_together(first, second, is_same):
    attempts = LoginThrottle()
    for n in range(10):
        attempts.begin(f"name{n}", first, 0.0, is_user=True)

    assert tries(attempts, "another", second, 0.0) == (0 if is_same else 10)


def test_a_login_that_succeeds_costs_none():
    attempts = LoginThrottle()
    for _ in range(1_000):
        attempts.begin("anna", "10.0.0.1", 0.0, is_user=True)
        attempts.succeed("anna", "10.0.0.1", 0.0)

    assert tries(attempts, "bob", "10.0.0.1", 0.0) == 10


def test_no_crowd_of_names_or_addresses_has_a_users_name_be_forgotten():
    attempts = LoginThrottle()
    for n in range(4):
        tries(attempts, "anna", address(n), 0.0)
    for number in range(30_000):
        name, place = f"n{number}", address(number + 1_000)
        attempts.begin(name, place, 0.0, is_user=False)

    assert tries(attempts, "anna", "10.200.0.1", 0.0) == 0


def test_refused_attempts_are_not_remembered():
    attempts = LoginThrottle()
    tries(attempts, "anna", "10.0.0.1", 0.0)
    for number in range(1_000):
        with pytest.raises(TooManyLogins):
            attempts.begin(f"n{number}", "10.0.0.1", 0.0, is_user=False)

    assert len(attempts._strangers) == 0


def test_its_memory_is_bounded():
    attempts = LoginThrottle()
    for number in range(30_000):
        attempts.begin(f"n{number}", address(number), 0.0, is_user=number % 2 == 0)
        attempts.remember(f"n{number}", address(number))

    kinds = (attempts._addresses, attempts._names, attempts._strangers, attempts._known)
    assert max(len(kind) for kind in kinds) <= 10_000


# ── passwords ───────────────────────────────────────────────────────────────────────────


async def test_a_password_is_known_again_and_no_other_is():
    passwords = Passwords()
    secret = await passwords.hashed("a horse, a battery")

    assert await passwords.matches(secret, "a horse, a battery")
    assert not await passwords.matches(secret, "a horse, a batterz")
    assert not await passwords.matches(None, "a horse, a battery")
    assert not await passwords.matches(secret, "x" * 5_000)
    assert b"horse" not in secret


def test_for_an_unknown_user_a_real_hash_is_compared():
    passwords = Passwords()

    with pytest.raises(VerifyMismatchError):
        passwords._hasher.verify(passwords._no_user, "anything")
    assert not passwords._hasher.check_needs_rehash(passwords._no_user.decode())


async def test_logins_beyond_the_queue_are_rejected():
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
