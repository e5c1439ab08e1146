"""Faults of the machine, made with its own tools, and what a real daemon does about them.

The daemon is a process like any other and knows nothing of these tests: faults come from
``strace``, a preloaded library, mounts, control groups, limits and signals. ``ground`` is the
home a fault is made on, with the judges that stand outside of it; ``tools`` makes the faults;
``kills``, ``crowds``, ``neighbours``, ``storage``, ``server``, ``clocks`` and ``machine`` are the
scenarios. Each returns figures and asserts, besides its promise, that enough happened for the
promise to have been tried.
"""
