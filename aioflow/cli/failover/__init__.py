"""``aioflow demo --failover``: two daemons on one database, and faults of the active one."""
