"""What the daemon and its tasks record about themselves: logs, task logs, traces."""
