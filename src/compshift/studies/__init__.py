"""The paper's studies: each is computed and drawn in one file."""
