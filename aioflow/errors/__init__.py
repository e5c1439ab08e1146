"""All errors that aioflow raises on purpose.

``DagError`` is raised before a DAG runs, ``Unserializable`` when a value is written,
``RequestError`` for a request that cannot be fulfilled, ``StoreError`` for the database, and
``TaskError`` for user code, where it ends one try but not the daemon. The other errors explain why
a daemon cannot serve. ``docs/reference/errors.md`` lists the codes and meanings of all errors.

``DagError``, ``SchemaMismatch`` and ``Unserializable`` are permanent: a retry cannot succeed. If a
row is no longer in the state that a change expects, ``core`` ignores the change as outdated, but
the store raises ``BatchRefused``. Exceptions for flow control are in ``aioflow.author.deferral``.
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
    # Stored failures contain the import path of the error class. The path must not change if the
    # class moves to another module of this package.
    globals()[_name].__module__ = __name__
