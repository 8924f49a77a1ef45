"""Recorded numbers of small fits and runs. ``python -m tests.golden`` writes them anew."""
