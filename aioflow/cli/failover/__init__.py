"""``aioflow demo --failover``: two daemons on one database, and faults in the active one."""
