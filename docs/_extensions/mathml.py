"""Render formulas as MathML, which browsers draw without a script or a network."""

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

FUNCTION = re.compile(r"<mi>(log|exp|min|max|softmax|Var|ESS)</mi>(?=(\s*<mo[^>]*>\()?)")


def spaced(match: re.Match[str]) -> str:
    """Return a function name with the spacing of TeX, which docutils omits."""
    right = "0" if match[2] else "0.1667em"
    return f'<mo lspace="0.1667em" rspace="{right}" movablelimits="false">{match[1]}</mo>'


def mathml(node: nodes.math | nodes.math_block, *, as_block: bool) -> str:
    """Return the formula as MathML; if it cannot be parsed, warn and show its source."""
    source = node.astext().strip()
    try:
        return FUNCTION.sub(spaced, latex2mathml.tex2mathml(source, as_block=as_block))
    except MathError as error:
        logger.warning("a formula cannot be shown: %s %s", error, source, location=node)
        return f"<code>{html.escape(source)}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Render an inline formula."""
    self.body.append(f'<span class="math">{mathml(node, as_block=False)}</span>')
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Render a displayed formula."""
    self.body.append(f'<div class="math-block">{mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
