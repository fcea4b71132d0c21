"""Configuration of Sphinx; `make docs` writes the generated pages first."""

import importlib.metadata

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from cachesim.report.html_document import FLAG

project = "cachesim"
author = copyright = "The cachesim authors"  # noqa: A001
version = release = importlib.metadata.version("cachesim")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "architecture.md", "companion-trim.md"]
exclude_patterns += ["mlx-lm-hit-rates.md", "out-of-reach.md"]
exclude_patterns += ["explanation/answered-before-released.md", "measurements.md"]
exclude_patterns += ["measurements/*.md", "howto/releases-of-mlx-lm.md"]
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


class FlagsOnOneLine(SphinxTransform):
    """Flags in titles and text get a class by which they are not broken at their hyphens."""

    default_priority = 500

    def apply(self) -> None:
        """Put each flag outside code into an element of its own."""
        for text in list(self.document.findall(nodes.Text)):
            parent = text.parent
            if not isinstance(
                parent, nodes.title | nodes.paragraph | nodes.strong | nodes.emphasis
            ):
                continue
            pieces: list[nodes.Node] = []
            end = 0
            for found in FLAG.finditer(text):
                pieces.append(nodes.Text(text[end : found.start()]))
                pieces.append(nodes.inline("", found[0], classes=["flag"]))
                end = found.end()
            if pieces:
                parent.replace(text, [*pieces, nodes.Text(text[end:])])


def setup(app: Sphinx) -> None:
    """Keep flags whole."""
    app.add_transform(FlagsOnOneLine)
