"""Sphinx settings; ``make docs`` builds the site into build/docs."""

import isomorph

project = "isomorph"
author = "the isomorph authors"
release = isomorph.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = [
    "toc.not_included",
    "myst.xref_missing",
]  # links into the source tree work on the repository's pages
exclude_patterns = ["build"]
html_theme = "furo"
html_title = "isomorph"
