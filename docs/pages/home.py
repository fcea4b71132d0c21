"""The picture of the home page, in the site's own light and dark."""

from make_picture import shown

from cachesim.report.svg import inline


def page() -> str:
    """One figure, which opens the same run in the playground."""
    link = f'<a href="playground/index.html">{inline(shown(), "home")}</a>'
    return f'<figure class="memory">{link}</figure>\n'
