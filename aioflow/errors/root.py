"""The base class of the errors that aioflow raises on purpose."""

from __future__ import annotations

from typing import ClassVar

__all__ = ("AioflowError",)


class AioflowError(Exception):
    """Base class of every error that aioflow raises on purpose.

    Attributes:
        code: Stable identifier for logs, the JSON API and exit messages. It never changes
            once released, unlike the message text.
    """

    code: ClassVar[str] = "error"
