"""How much a browser loads before it shows the page."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import aioflow.web

STATIC = Path(aioflow.web.__file__).parent / "static"
MOST = 120_000
"""Bytes of script and style, compressed, before the first view. The rest is loaded by its views."""


def test_the_first_load_is_small():
    page = (STATIC / "index.html").read_text()
    names = re.findall(r'"/static/([^"]+\.(?:js|css))"', page)
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes())) for name in names}

    assert len(sizes) >= 2
    assert sum(sizes.values()) <= MOST, sizes
