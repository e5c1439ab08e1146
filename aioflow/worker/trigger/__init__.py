"""One trigger in the triggerer: creating it, running it by itself or shared, and describing it."""

from __future__ import annotations
