"""How much data a browser loads before it shows the page."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import aioflow.web

STATIC = Path(aioflow.web.__file__).parent / "static"
MOST = 120_000
"""Compressed bytes of scripts and styles before the first view. Views load the rest when shown."""


def test_the_first_load_is_small():
    page = (STATIC / "index.html").read_text()
    names = re.findall(r'"/static/([^"]+\.(?:js|css))"', page)
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes())) for name in names}

    assert len(sizes) >= 2
    assert sum(sizes.values()) <= MOST, sizes
