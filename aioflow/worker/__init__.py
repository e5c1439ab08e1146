"""The program that children run: user code lives here and nowhere else."""

from __future__ import annotations
