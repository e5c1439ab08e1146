"""Background work on stored data: retention, deletion, and restoration of version code."""
