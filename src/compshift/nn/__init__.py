"""PyTorch: backbones and heads. Needs ``compshift[torch]``."""
