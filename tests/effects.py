"""The effects of a turn that something outside the engine executes."""

from __future__ import annotations

from typing import get_args

from aioflow.protocol.effects import Acknowledge, Again, Effect, WakeAt, Warn

__all__ = ("EXECUTED",)

EXECUTED = set(get_args(Effect)) - set(get_args(Again)) - {WakeAt, Acknowledge, Warn}
