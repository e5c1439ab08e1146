"""Which Python files may define DAGs, judged by their text alone. Parsing them decides."""

from __future__ import annotations

import re

__all__ = ("may_define_dags", "names_us")

_WORDS = tuple("aioflow".encode(coding) for coding in ("ascii", "utf-16-le", "utf-16-be"))

_AIRFLOW_DAG = re.compile(
    rb"^[ \t]*from[ \t]+airflow[\w.]*[ \t]+import\b(?:[^\n#]*|[ \t]*\([^)]*)\b(?:DAG|dag)\b"
    rb"|\b(?:airflow|models|sdk|decorators)\.(?:DAG|dag)\b",
    re.MULTILINE,
)


def names_us(content: bytes) -> bool:
    """Return whether a file contains the word ``aioflow``; without it, it defines no DAG."""
    return any(word in content for word in _WORDS)


def may_define_dags(content: bytes) -> bool:
    """Return whether to parse a file: it contains ``aioflow``, or takes its DAG from Airflow.

    Parsing the latter yields advice on what to write instead.
    """
    return names_us(content) or (b"airflow" in content and _AIRFLOW_DAG.search(content) is not None)
