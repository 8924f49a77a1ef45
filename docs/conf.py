"""Sphinx configuration; ``make docs`` builds the pages into ``out/docs`` without a network."""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "src")]

import compshift  # noqa: E402

project = "compshift"
author = "the compshift contributors"
copyright = author  # noqa: A001
version = release = compshift.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "commands", "fields", "notebook"]
notebook_pages = ["tutorial"]
exclude_patterns = ["_extensions", *(f"gallery/**/*.{ending}" for ending in ("ipynb", "py", "md5", "json", "zip"))]
smartquotes_action = "D"  # convert dashes only; quotes stay as typed

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings name the types; they make signatures hard to read
autodoc_default_options = {"members": True, "inherited-members": "BaseEstimator, ClassifierMixin, Module, ABC"}
napoleon_custom_sections = [("Attributes", "params_style")]  # keep the trailing underscore of fitted attributes
napoleon_use_param = False  # do not link words in parameter types
napoleon_use_rtype = False
napoleon_attr_annotations = False

html_theme = "furo"
html_title = f"compshift {release}"
html_static_path = ["_static"]
html_css_files = ["compshift.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
highlight_language = "text"

has_gallery = (HERE.parent / "examples" / "gallery").is_dir()
if has_gallery:
    extensions.append("sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": "../examples/gallery",
        "gallery_dirs": "gallery",
        "filename_pattern": r"\.py$",  # run every example
        "abort_on_example_error": True,
        "download_all_examples": False,
        "show_memory": False,
        "write_computation_times": False,  # that page loads scripts from other servers
        "copyfile_regex": "",
        "first_notebook_cell": None,
        "show_signature": False,
    }


def setup(app: Any) -> None:
    """Connect the hooks below."""
    app.connect("autodoc-skip-member", foreign)
    app.connect("source-read", without_gallery)


def without_gallery(_app: Any, page: str, source: list[str]) -> None:
    """Remove the gallery from the toctree of the first page if there are no examples."""
    if page == "index" and not has_gallery:
        source[0] = source[0].replace("gallery/index\n", "")


def foreign(_app: Any, _what: str, _name: str, member: Any, skip: bool, _options: Any) -> bool | None:
    """Skip members inherited from scikit-learn, PyTorch or NumPy; None leaves the decision to Sphinx."""
    function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
    home = getattr(function, "__module__", None) or getattr(getattr(function, "__objclass__", None), "__module__", "")
    return None if skip or home.startswith("compshift") else True
