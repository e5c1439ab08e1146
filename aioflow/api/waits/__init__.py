"""Why a task waits: the root cause, sentences for it, and the longest waits."""
