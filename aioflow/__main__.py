"""``python -m aioflow`` is the same program as ``aioflow``."""

from __future__ import annotations

import sys

from aioflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
