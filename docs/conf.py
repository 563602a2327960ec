"""Configures Sphinx, which builds the site: `make docs`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "Tidemill"
author = "The Tidemill authors"
copyright = "The Tidemill authors, Apache License 2.0"
version = release = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"][
    "version"
]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block"]
myst_heading_anchors = 4
myst_html_meta = {
    "description": (
        "Tidemill runs ACID transactions over streams of events, in one order, exactly once."
    )
}

autodoc_typehints = "description"
# Parameters without a description are those of objects that users do not create.
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}

html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"
html_title = "Tidemill"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["tidemill.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e69", "color-brand-content": "#0b6e69"},
    "dark_css_variables": {"color-brand-primary": "#5cc8c0", "color-brand-content": "#5cc8c0"},
}

#: The marks before the blocks of a page: python/tests/test_docs.py explains them.
MARK = re.compile(r"<!-- (file|output)(?:: (.*?))? ?-->")


def add_captions(app: Sphinx, doctree: nodes.document) -> None:
    """Shows the marks of blocks: the name of a file, or that a block is an output."""
    for mark in list(doctree.findall(nodes.raw)):
        found = MARK.fullmatch(mark.astext().strip())
        block = mark.next_node(descend=False, siblings=True)
        if not found or not isinstance(block, nodes.literal_block):
            continue
        kind, name = found.groups()
        box = nodes.container("", literal_block=True, classes=["literal-block-wrapper", kind])
        box += nodes.caption("", "", nodes.Text(name or kind))
        doctree.set_id(box, suggested_prefix=f"{kind}-")
        block.replace_self(box)
        box += block
        mark.parent.remove(mark)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the function of this file."""
    app.connect("doctree-read", add_captions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
