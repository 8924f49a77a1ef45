"""A fitted model as an HTTP service; needs ``compshift[serve]``."""
