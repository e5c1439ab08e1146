"""Every error aioflow raises on purpose.

``DagError`` is raised before a DAG runs, ``Unserializable`` where a value is written,
``RequestError`` for what a caller asked, ``StoreError`` for the database, and ``TaskError`` for
user code: it ends one try, not the daemon. The other errors say why a daemon cannot serve. Their
codes and meanings are listed in ``docs/reference/errors.md``.

``DagError``, ``SchemaMismatch`` and ``Unserializable`` are permanent: retrying cannot
help. If a row has changed state before a change to it is applied, ``core`` ignores the change
as late; the store raises ``BatchRefused``. Flow control is not an error either: see
``aioflow.author.deferral``.
"""

from __future__ import annotations

from aioflow.errors import author, requests, runtime
from aioflow.errors.author import *  # noqa: F403 - the modules list what they define
from aioflow.errors.requests import *  # noqa: F403
from aioflow.errors.root import AioflowError
from aioflow.errors.runtime import *  # noqa: F403

__all__ = ["AioflowError"]
__all__ += author.__all__
__all__ += requests.__all__
__all__ += runtime.__all__

for _name in __all__:
    # Stored failures name the class by this path, which must not change when a class moves between
    # the modules of this package.
    globals()[_name].__module__ = __name__
