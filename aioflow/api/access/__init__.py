"""Access control: users, tokens and sessions, who asks, and the audit of what they did."""
