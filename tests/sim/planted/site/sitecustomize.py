"""Plants the bug that the environment names, in every process that starts with it."""

from __future__ import annotations

import os

from tests.sim.planted import BUGS
from tests.sim.planted.plant import VARIABLE, install

install(BUGS[os.environ[VARIABLE]])
