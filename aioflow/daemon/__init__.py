"""The daemon: one node, its database and its API, from the start to the drained end."""
