"""The base class of the errors that aioflow raises on purpose, and messages from templates."""

from __future__ import annotations

from typing import ClassVar, dataclass_transform

__all__ = ("AioflowError", "MessageTemplate")


class AioflowError(Exception):
    """Base class of every error that aioflow raises on purpose.

    Attributes:
        code: Stable identifier for logs, the JSON API and exit messages. It never changes once
            released, unlike the message text.
    """

    code: ClassVar[str] = "error"


@dataclass_transform()
class MessageTemplate(Exception):
    """Mix-in for errors whose arguments are their annotated fields, which fill a message template.

    Attributes:
        message: Template for ``str.format``.
    """

    message: ClassVar[str]
    _field_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Record the fields of a class with a template. Its subclasses take the same arguments."""
        super().__init_subclass__()
        if "message" in vars(cls):
            cls._field_names = tuple(cls.__annotations__)

    def __init__(self, *values: object, **named: object) -> None:
        fields = dict(zip(self._field_names, values, strict=False)) | named
        if set(fields) != set(self._field_names) or len(values) + len(named) != len(fields):
            takes = ", ".join(self._field_names) or "no arguments"
            raise TypeError(f"{type(self).__name__} takes {takes}")
        super().__init__(self.message.format(**fields))
        self.__dict__.update(fields)
