"""Code of DAG versions in a child process: loaded in workers, examined in the parser."""

from __future__ import annotations
