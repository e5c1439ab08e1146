"""The third level: one to four daemons on one simulated PostgreSQL database."""
