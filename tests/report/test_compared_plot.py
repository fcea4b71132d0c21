"""The picture of a comparison: one bar for each row, as long as what was asked."""

from xml.etree import ElementTree as ET

from cachesim.play.comparing import Compared
from cachesim.report.compared import REUSED, colours_of, plot

ROWS = (
    Compared(name="upper bound", cached=(0, 30), prompt_tokens=100),
    Compared(
        name="a <b>", cached=(0, 10), prompt_tokens=100, lost={"state-missing": 15, "pairs": 5}
    ),
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


def test_every_cause_has_a_fill_of_its_own() -> None:
    lost = {f"cause-{number}": 40 - number for number in range(30)}
    drawn = ET.fromstring(
        plot("many", [Compared(name="a", cached=(1,), prompt_tokens=2000, lost=lost)])
    )
    fills = {
        pattern.get("id"): (pattern[0].get("fill"), pattern[1].get("d"))
        for pattern in drawn.iter(f"{SVG}pattern")
        if pattern.get("id") not in {"px", "pg"}
    }
    used = [
        bar.get("fill", "")[5:-1] for bar in drawn.iter(f"{SVG}rect") if bar.get("class") == "b"
    ]

    assert len(lost) + 1 == len(set(used))
    assert set(used) <= set(fills)
    assert len(fills) == len(set(fills.values()))


def test_all_rows_have_one_scale() -> None:
    rows = (
        Compared(name="upper bound", cached=(50, 50), prompt_tokens=200),
        Compared(name="one refused", cached=(50, None), prompt_tokens=100, lost={"refused": 50}),
    )
    drawn = ET.fromstring(plot("a title", rows))
    rails = [line.get("x2") for line in drawn.iter(f"{SVG}line") if line.get("class") == "g"]
    ends = [
        float(bar.get("x", "")[:-1]) + float(bar.get("width", "")[:-1])
        for bar in drawn.iter(f"{SVG}rect")
        if str(bar.get("width")).endswith("%") and bar.get("class") == "b"
    ]

    assert ["100%", "50%"] == rails[:2]
    assert 50 == max(ends)


def test_names_problems_and_causes_are_told_and_escaped() -> None:
    text = plot("a title & more", ROWS)

    assert "a &lt;b&gt;" in text
    assert "there is no such flag" in text
    assert {"state-missing": 0, "pairs": 2} == colours_of(ROWS)
    assert REUSED not in colours_of(ROWS).values()


def test_reused_tokens_are_plain_and_lost_ones_are_hatched() -> None:
    drawn = ET.fromstring(plot("a title", ROWS))
    hatches = {each.get("id"): each[1].get("d") for each in drawn.iter(f"{SVG}pattern")}

    assert [f"p{REUSED}"] == [name for name, hatch in hatches.items() if not hatch]
