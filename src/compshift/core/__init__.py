"""The maths of compositional shift: arrays in, arrays out, no files and no state."""
