"""Faults of the machine, injected with its own tools, and how a real daemon handles them.

The daemon is a process like any other and knows nothing of these tests: faults come from
``strace``, a preloaded library, mounts, control groups, limits and signals. ``ground`` is the
home for a fault, with the checks outside of the daemon; ``tools`` injects the faults;
``kills``, ``crowds``, ``neighbours``, ``storage``, ``server``, ``clocks`` and ``machine`` are the
scenarios. Each returns figures and asserts, besides its promise, that enough happened for the
promise to have been tried.
"""
