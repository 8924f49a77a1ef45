"""Experiments: what is run, and the numbers that come out."""
