"""``airflow.configuration``: what operators ask for while they are written."""

from __future__ import annotations

from typing import Any

from aioflow.author.deferrable import default_deferrable

__all__ = ("AirflowConfigException", "conf")

_REQUIRED: Any = object()


class AirflowConfigException(Exception):
    """Nobody has set that, and no fallback is given."""


class _Conf:
    """Knows ``[operators] default_deferrable``, and of everything else what the caller says."""

    def get(self, section: str, key: str, fallback: Any = _REQUIRED, **options: Any) -> Any:
        """Return the fallback.

        Raises:
            AirflowConfigException: If there is none.
        """
        if fallback is _REQUIRED:
            raise AirflowConfigException(f"section/key [{section}/{key}] not found in config")
        return fallback

    def getboolean(self, section: str, key: str, fallback: Any = _REQUIRED, **options: Any) -> Any:
        """Return whether operators defer by default; of everything else the fallback."""
        if (section, key) == ("operators", "default_deferrable"):
            return default_deferrable()
        return self.get(section, key, fallback)

    getint = getfloat = get


conf = _Conf()
