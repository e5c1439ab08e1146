"""Access control: users, tokens and sessions, authentication, and the audit log."""
