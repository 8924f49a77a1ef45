"""Benchmarks: plan jobs, run them on any executor, and turn their records into tables."""
