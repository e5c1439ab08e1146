"""The number of function calls the engine makes to decide one hop of a chain.

The time of a hop depends on the machine; the number of calls does not. If this test fails, let the
new code run only in the turns that need it: test a flag, or create an object lazily.
"""

from __future__ import annotations

import sys
from types import FrameType

from aioflow.core.step import decide
from tests.core.specs import task
from tests.core.world import World

CORE = "/aioflow/core/"
CALLS_OF_A_HOP = 210


def test_a_hop_of_a_chain_takes_a_bounded_number_of_calls():
    world = World()
    world.begin(task("a"), task("b", 0), task("c", 1), task("d", 2))
    world.succeed("a")
    world.succeed("b")
    calls: list[str] = []
    deciding: list[FrameType] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is decide.__code__:
            deciding.append(frame)
        if event == "call" and deciding and CORE in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)
        if event == "return" and deciding and frame is deciding[-1]:
            deciding.pop()

    sys.setprofile(count)
    try:
        world.succeed("c")
    finally:
        sys.setprofile(None)

    assert world.started("d")
    assert 0 < len(calls) <= CALLS_OF_A_HOP, calls
