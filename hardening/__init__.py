"""Attempts to break compshift; see run.py."""
