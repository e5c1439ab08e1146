"""Alembic revisions, which create the tables of a database, each for SQLite and PostgreSQL."""
