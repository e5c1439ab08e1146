"""Records of the daemon and its tasks: the daemon's log, task logs, and traces."""
