"""The executor on Dask. Its workers are processes beside the workers of a Dask cluster.

For each worker there is one Dask task, a **pilot**. It occupies a thread and resources of a Dask
worker as long as there is work. Dask places, queues and scales pilots. Tries never become Dask
tasks. They travel over the link of ``stream``, which is one connection of Dask's own protocol
between the daemon and each Dask worker that has pilots.

``backend``, ``cluster`` and ``agent_link`` run in the daemon, ``agent`` and ``hosted_worker`` in a
Dask worker, ``stream`` and ``messages`` in both. Dask is imported when the backend starts.
"""

from __future__ import annotations
