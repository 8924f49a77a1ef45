"""Numbers that are hard on a computer."""
