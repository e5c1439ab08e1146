"""Machine faults, injected with the machine's own tools, and how a real daemon handles them.

The daemon is an ordinary process and knows nothing of these tests: faults come from ``strace``, a
preloaded library, mounts, control groups, limits and signals. ``ground`` provides the home that a
fault hits, with checks from outside the daemon; ``tools`` injects the faults; ``kills``,
``crowds``, ``neighbours``, ``storage``, ``server``, ``clocks`` and ``machine`` are the scenarios.
Each scenario returns figures. It asserts its promise, and also that enough happened to put the
promise to the test.
"""
