"""How Sphinx builds the site; `make docs` writes the generated pages first."""

import importlib.metadata

from sphinx.application import Sphinx

project = "cachesim"
author = copyright = "The cachesim authors"  # noqa: A001
version = release = importlib.metadata.version("cachesim")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "architecture.md", "companion-trim.md"]
exclude_patterns += ["mlx-lm-hit-rates.md", "out-of-reach.md"]
exclude_patterns += ["explanation/answered-before-released.md"]
"""Pages for contributors and for the authors of proposals: in the repository, not on the site."""
templates_path = ["templates"]
html_theme = "furo"
html_title = "cachesim"
html_extra_path = ["schema"]
html_static_path = ["static", "_generated/static"]
html_css_files = ["picture.css", "lessons.css"]
html_js_files = ["lessons.js", "filter.js"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {
    "navigation_with_keys": True,
    "sidebar_hide_name": False,
    "top_of_page_buttons": [],
}
myst_heading_anchors = 3
highlight_language = "none"
smartquotes = False  # `--flag` is no dash
nitpicky = True

FORMER_NAMES = "## Former names"
"""A section for contributors."""


def setup(app: Sphinx) -> None:
    """Leave the former names of functions and classes out of the page of words."""

    def shorten(_: Sphinx, name: str, source: list[str]) -> None:
        if name == "words":
            source[0] = source[0].partition(FORMER_NAMES)[0]

    app.connect("source-read", shorten)
