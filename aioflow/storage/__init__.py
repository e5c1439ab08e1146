"""Storage outside of the home: results and logs in an object store, and its local copies."""
