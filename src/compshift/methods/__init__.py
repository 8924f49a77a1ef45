"""Training methods, one file per family. All but ``sampling`` need ``compshift[torch]``."""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

if TYPE_CHECKING:
    from compshift.methods import registry
    from compshift.methods.base import Method as Method
    from compshift.methods.registry import METHODS as METHODS
    from compshift.methods.registry import make_method as make_method

__all__ = ["METHODS", "Method", "make_method", "registry"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "METHODS": "compshift.methods.registry",
        "Method": "compshift.methods.base",
        "make_method": "compshift.methods.registry",
        "registry": "compshift.methods.registry",
    },
)
