"""A node under seeds: one generator chooses, and every commit may go wrong."""
