"""Labelled data with their groups: files, made-up sets, and the ways to take groups away."""
