"""One trigger in the triggerer: created, run by itself or in a shared poller, described."""

from __future__ import annotations
