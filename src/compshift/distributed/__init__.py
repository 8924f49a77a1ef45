"""Processes that share one job, behind one interface."""
