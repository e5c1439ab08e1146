"""One trigger in the triggerer: creation, execution alone or in a watch, and description."""

from __future__ import annotations
