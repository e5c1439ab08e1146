"""Alembic revisions that create and migrate the tables, for SQLite and for PostgreSQL."""
