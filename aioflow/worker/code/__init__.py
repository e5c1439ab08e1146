"""The code of DAG versions in a child: loaded in worker processes, examined in the parser."""

from __future__ import annotations
