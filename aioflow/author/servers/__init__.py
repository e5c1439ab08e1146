"""Servers that user code connects to: types of connections, and what is sent to them."""
