"""The built files of the web page, and the paths at which the page is shown.

The files are built from ``ui/``. They need no authentication, because they contain no data. The
page requests its data from the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

from aioflow.web.permissions import anybody

__all__ = ("is_page", "missing_page", "router")

_FOLDER = Path(__file__).with_name("static")
_PREFIX = "/static/"
_INDEX = "index.html"

_PLACES = frozenset(
    {
        "access",
        "assets",
        "audit",
        "backfills",
        "dags",
        "decide",
        "decisions",
        "errors",
        "events",
        "executors",
        "nodes",
        "pools",
        "runs",
        "schedules",
        "settings",
        "triggers",
    }
)
_WITH_PARTS = frozenset({"dags", "decisions", "runs"})
"""Sections of the page in which each object has its own URL."""

_NOT_OF_THE_PAGE = ("/api/", "/docs", "/health/", "/metrics", "//", _PREFIX)
"""Beginnings of paths that never show the page, so that their errors remain those of the API."""

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_FOR_GOOD = {"cache-control": "public, max-age=31536000, immutable"}
"""Headers that let browsers cache files forever: file names contain a hash of the content."""


@cache
def _files() -> Mapping[str, bytes]:
    """Return all files by name. They are read in advance, so no request can name a path on disk."""
    return {path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in _TYPES}


def is_page(path: str) -> bool:
    """Return whether a path shows the page or is one of its files. Neither needs a token."""
    if not path.startswith("/"):
        return False
    if path.startswith(_PREFIX):
        return path.removeprefix(_PREFIX) in _files()
    place, has_parts, _ = path.removeprefix("/").partition("/")
    return path == "/" or place in (_WITH_PARTS if has_parts else _PLACES)


def missing_page(path: str, accept: str) -> Response | None:
    """Return the page for a URL that does not exist, if a browser navigates to it.

    The page then shows that the URL does not exist, and offers a way back. It needs no
    authentication, because it contains no data, and is the same for every path, whether anything
    exists there or not.
    """
    if path.startswith(_NOT_OF_THE_PAGE) or "text/html" not in accept.lower():
        return None
    return Response(_files()[_INDEX], status_code=404, media_type=_TYPES[".html"])


router = APIRouter(include_in_schema=False, dependencies=[anybody()])
"""The routes of the page."""


async def _page() -> Response:
    return Response(_files()[_INDEX], media_type=_TYPES[".html"])


@router.get(f"{_PREFIX}{{name}}")
async def _built(name: str) -> Response:
    content = _files().get(name)
    if content is None:
        raise HTTPException(404, "no such file")
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=_FOR_GOOD)


for _path in (
    "/",
    *(f"/{place}" for place in sorted(_PLACES)),
    *(f"/{place}/{{rest:path}}" for place in sorted(_WITH_PARTS)),
):
    router.add_api_route(_path, _page, methods=["GET", "HEAD"])
