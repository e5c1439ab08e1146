"""Tests of the whole product as a real process."""
