"""Decisions about when and where work starts: timetables, ready queues and slots."""
