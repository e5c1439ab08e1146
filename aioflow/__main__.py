"""``python -m aioflow`` is the same program as ``aioflow``."""

from __future__ import annotations

import sys

__all__ = ("main",)

_INTERRUPTED = 130


def main() -> int:
    """Run one command; Ctrl-C ends it without a traceback from its first import on."""
    try:
        from aioflow.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
