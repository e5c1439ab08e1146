"""``airflow.configuration``: settings that operators read when they are defined."""

from __future__ import annotations

from typing import Any

from aioflow.author.deferrable import default_deferrable

__all__ = ("AirflowConfigException", "conf")

_REQUIRED: Any = object()


class AirflowConfigException(Exception):
    """The setting does not exist, and no fallback was given."""


class _Conf:
    """Provides ``[operators] default_deferrable``; any other setting has the caller's fallback."""

    def get(self, section: str, key: str, fallback: Any = _REQUIRED, **options: Any) -> Any:
        """Return the fallback.

        Raises:
            AirflowConfigException: If there is none.
        """
        if fallback is _REQUIRED:
            raise AirflowConfigException(f"section/key [{section}/{key}] not found in config")
        return fallback

    def getboolean(self, section: str, key: str, fallback: Any = _REQUIRED, **options: Any) -> Any:
        """Return whether operators defer by default; for any other setting, the fallback."""
        if (section, key) == ("operators", "default_deferrable"):
            return default_deferrable()
        return self.get(section, key, fallback)

    getint = getfloat = get


conf = _Conf()
