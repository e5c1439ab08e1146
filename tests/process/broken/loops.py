import aioflow  # noqa: F401

while True:
    pass
