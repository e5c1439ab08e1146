"""The daemon: one node with its database and its API, from its start until it is drained."""
