"""Background work on stored data: retention, deletion, and restoring the code of versions."""
