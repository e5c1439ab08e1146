import sys

import aioflow  # noqa: F401

sys.exit(0)
