"""How Sphinx builds the site; `make docs` writes the generated pages first."""

import importlib.metadata

project = "cachesim"
author = copyright = "The cachesim authors"  # noqa: A001
version = release = importlib.metadata.version("cachesim")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "cachesim"
html_extra_path = ["schema"]
html_theme_options = {
    "navigation_with_keys": True,
    "sidebar_hide_name": False,
}
myst_heading_anchors = 3
highlight_language = "none"
nitpicky = True
