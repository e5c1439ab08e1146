"""The whole product as a real process."""
