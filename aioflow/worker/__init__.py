"""The program of the child processes. User code runs in these processes and nowhere else."""

from __future__ import annotations
