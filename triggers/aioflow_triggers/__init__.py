"""The standard trigger catalogue: an ordinary plug-in that uses only the public API of aioflow."""
