"""Every command with every kind of bad input."""
