"""Settings of the whole suite."""

from hypothesis import settings

settings.register_profile("compshift", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("compshift")
