"""``python -m aioflow`` is the same program as ``aioflow``."""

from __future__ import annotations

import gc
import sys

__all__ = ("main",)

_INTERRUPTED = 130

_COLLECT_AT = 50_000
"""Importing makes nothing but what stays; a command that goes on is collected all the same."""


def main() -> int:
    """Run one command; Ctrl-C ends it without a traceback from its first import on."""
    gc.set_threshold(_COLLECT_AT)
    try:
        from aioflow.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        gc.freeze()  # what is left goes with the process: the collector need not walk it first


if __name__ == "__main__":
    sys.exit(main())
