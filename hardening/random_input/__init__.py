"""Random input, by Hypothesis."""
