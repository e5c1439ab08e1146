"""Entry point of ``python -m aioflow``, the same program as ``aioflow``."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType

__all__ = ("main",)

_INTERRUPTED = 130

_COLLECT_AT = 50_000
"""Number of allocations that triggers a garbage collection. Imports leave little to collect."""

_DAEMONS = ("up", "demo")


def main() -> int:
    """Run one command. Ctrl-C ends it without a traceback, even during its imports."""
    gc.set_threshold(_COLLECT_AT)
    if _is_daemon(sys.argv[1:]):
        _end_with_success()
    try:
        from aioflow.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        gc.freeze()  # the process ends, so a last garbage collection is a waste


def _is_daemon(words: list[str]) -> bool:
    return not words or words[0].startswith("-") or words[0] in _DAEMONS


def _end_with_success() -> None:
    """Let SIGTERM and SIGHUP end the process with status 0 until the daemon handles them itself.

    A signal that is ignored, such as SIGHUP under ``nohup``, stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
