"""Embeddings of images and texts, computed once and kept. Needs ``compshift[torch]``."""
