"""Measurements, one module per claim. See README.md for how to read and repeat them."""
