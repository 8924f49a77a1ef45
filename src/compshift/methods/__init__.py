"""Training methods, one file each. Needs ``compshift[torch]``."""
