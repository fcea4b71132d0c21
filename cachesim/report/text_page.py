"""A terminal's page as an HTML page, for commands whose report has no pictures."""

from html import escape
from typing import Final

from rich.console import RenderableType

from cachesim.report.consoles import plain_text

HTML: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<style>body{{margin:1rem}}pre{{font:15px/1.4 ui-monospace,monospace;overflow-x:auto}}</style>"
    "</head><body><pre>{text}</pre></body></html>\n"
)
WIDTH: Final = 100


def text_page(title: str, page: RenderableType) -> str:
    """The page's text, as it would be printed into a pipe."""
    return HTML.format(title=escape(title), text=escape(plain_text(page, width=WIDTH)))
