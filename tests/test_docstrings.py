"""Every public name is documented in numpydoc form."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("numpydoc")

from tests.docstrings import complaints


def test_public_docstrings_pass_numpydoc():
    assert not complaints()
