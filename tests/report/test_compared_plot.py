"""The picture of a comparison: one bar for each row, as long as what was asked."""

from xml.etree import ElementTree as ET

from cachesim.report.compared_plot import REUSED, colours_of, plot
from cachesim.scenario.comparing import Compared

ROWS = (
    Compared(name="no cache can beat", cached=(0, 30), asked=100),
    Compared(name="a <b>", cached=(0, 10), asked=100, lost={"state-missing": 15, "pairs": 5}),
    Compared(name="refused", problem="there is no such flag"),
)
SVG = "{http://www.w3.org/2000/svg}"


def test_reused_and_lost_are_as_wide_as_their_share_of_the_prompts() -> None:
    drawn = ET.fromstring(plot("a title & more", ROWS))
    bars = {
        title.text: bar.get("width")
        for group in drawn.iter(f"{SVG}g")
        for title, bar in [tuple(group)]
    }

    assert {
        "reused: 30 tokens": "30%",
        "reused: 10 tokens": "10%",
        "state-missing: 15 tokens": "15%",
        "pairs: 5 tokens": "5%",
    } == bars


def test_names_problems_and_causes_are_told_and_escaped() -> None:
    text = plot("a title & more", ROWS)

    assert "a &lt;b&gt;" in text
    assert "there is no such flag" in text
    assert {"state-missing": 0, "pairs": 1} == colours_of(ROWS)
    assert REUSED not in colours_of(ROWS).values()
