"""Servers that user code connects to: connection types, and the sending of messages."""
