"""Tools for testing DAGs: a whole node in one process, on virtual time.

::

    from aioflow.testing import Sim, collect
"""

from __future__ import annotations

from aioflow.testing.collect import BEGINS_AT, collect
from aioflow.testing.runs import RunStuck, SimBackfill, SimRun, SimTask
from aioflow.testing.sim import Sim

__all__ = ("BEGINS_AT", "RunStuck", "Sim", "SimBackfill", "SimRun", "SimTask", "collect")
