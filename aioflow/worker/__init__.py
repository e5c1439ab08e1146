"""The program of the child processes: user code runs here and nowhere else."""

from __future__ import annotations
