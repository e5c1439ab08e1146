"""``aioflow demo --failover``: two daemons on one database, of which the active one keeps dying."""
