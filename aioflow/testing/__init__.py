"""What tests of DAGs import: a whole node in one process, on virtual time.

::

    from aioflow.testing import Sim
"""

from __future__ import annotations

from aioflow.testing.runs import SimRun, SimTask
from aioflow.testing.sim import BEGINS_AT, RunStuck, Sim

__all__ = ("BEGINS_AT", "RunStuck", "Sim", "SimRun", "SimTask")
