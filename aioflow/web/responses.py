"""JSON responses, encoded by msgspec in one pass and without validation."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Query, Response

from aioflow.api.queries import PAGE

__all__ = ("Count", "Json", "MapIndex", "Offset", "RoundNumber", "Row", "TryNumber")

Count = Annotated[int, Query(ge=1, le=PAGE)]
Offset = Annotated[int, Query(ge=0, le=1 << 53)]
MapIndex = Annotated[int, Query(alias="map", ge=-1, le=1 << 53)]
RoundNumber = Annotated[int, Query(alias="round", ge=-1, le=1 << 53)]
TryNumber = Annotated[int | None, Query(alias="try", ge=1, le=1 << 31)]
Row = 1 << 62
"""The highest row number."""


class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)
