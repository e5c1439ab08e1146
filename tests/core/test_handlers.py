"""The table of handlers contains every type of input exactly once."""

from __future__ import annotations

from typing import get_args

from aioflow.core.step import HANDLERS
from aioflow.protocol.inputs import Input


def test_each_type_of_input_has_a_handler_and_nothing_else_has_one():
    assert set(HANDLERS) == set(get_args(Input))
