"""How a database gets its tables: Alembic revisions, each for both databases."""
