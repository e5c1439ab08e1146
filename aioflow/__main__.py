"""``python -m aioflow`` is the same program as ``aioflow``."""

from __future__ import annotations

import gc
import sys

__all__ = ("main",)

_INTERRUPTED = 130

_COLLECT_AT = 50_000
"""Allocations between two collections: imports create few objects that could be collected."""


def main() -> int:
    """Run one command; Ctrl-C ends it without a traceback from its first import on."""
    gc.set_threshold(_COLLECT_AT)
    try:
        from aioflow.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        gc.freeze()  # the process ends: a last collection would only take time


if __name__ == "__main__":
    sys.exit(main())
