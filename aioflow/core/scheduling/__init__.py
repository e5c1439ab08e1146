"""Decisions about when and where work starts: timetables, the ready queue, slots."""
