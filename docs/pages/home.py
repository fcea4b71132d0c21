"""The picture of the home page, in the site's own light and dark."""

from make_picture import shown

from cachesim.report.svg import inline


def page() -> str:
    """One figure, to be included."""
    return f'<figure class="memory">{inline(shown(), "home")}</figure>\n'
