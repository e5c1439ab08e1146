"""Storage outside the home: results and logs in an object store, and their local copies."""
