"""Results: knees of a curve, differences of releases, bytes held over the requests."""

import json
import re
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from cachesim.cli.main import main
from cachesim.engines.held import Held, sizes_of
from cachesim.model.spec import ModelSpec
from cachesim.report import sweep
from cachesim.report.charts import balance_bars, stacked_areas
from cachesim.report.consoles import plain_text
from cachesim.report.html_document import page as html_page
from cachesim.traces.plan import plan_of
from cachesim.traces.replay import MOMENTS, Cell, Timeline, play, row_of
from cachesim.traces.source import Source
from cachesim.traces.sweep import flat
from cachesim.traces.verifying import VOCABULARY, spelled

SERVERS: Final = (
    "llama.cpp@b9538", "llama.cpp@b11549", "ik_llama.cpp@8337e4cd3", "mlx-lm@0.32.2",
    "vllm@0.33.0", "sglang@0.5.9", "sglang@0.5.23", "marconi@paper",
)  # fmt: skip

PLAN: Final[dict[str, Any]] = {
    "format": 1,
    "trace": [{"made": 150, "scale": 32}],
    "server": [
        {
            "profile": ["llama.cpp@b9538", "llama.cpp@b11549"],
            "model": "hybrid",
            "set": {"cache_ram": [1, 2]},
            "sizes": {"token": 256 // 32, "state": 41_984},  # those of the preset
        }
    ],
}


def rows() -> list[dict[str, Any]]:
    return [row_of(cell, play(cell)) for cell in plan_of(PLAN)]


# -- knees -----------------------------------------------------------------------------------------


def test_a_knee_is_where_a_doubling_brings_much_less_than_the_one_before() -> None:
    (knee,) = sweep.knees([(8000, 0.375), (1000, 0.19), (2000, 0.28), (4000, 0.37)])

    assert (4000, 0.37) == (knee.at, knee.share)
    assert (0.09, 0.005) == (round(knee.before, 6), round(knee.after, 6))
    text = "37.0 % at 4,000: doubling up to 4,000 gains 9.0 points, doubling beyond 0.5"
    assert text == knee.sentence


def test_a_curve_with_stairs_has_a_knee_at_each_and_an_even_one_has_none() -> None:
    stairs = [(1, 0.0), (2, 0.1), (4, 0.1), (8, 0.3), (16, 0.3)]
    even = [(2**at, at / 10) for at in range(6)]

    assert [2, 8] == [knee.at for knee in sweep.knees(stairs)]
    assert [] == sweep.knees(even)


def test_a_step_of_four_times_the_size_counts_as_two_doublings() -> None:
    found = sweep.knees([(1, 0.0), (4, 0.2), (8, 0.2)])

    assert [sweep.Knee(at=4, share=0.2, before=0.1, after=0.0)] == found


@pytest.mark.parametrize("curve", [[], [(1, 0.1)], [(1, 0.1), (2, 0.5)], [(0, 0.1), (0, 0.2)]])
def test_a_curve_of_few_sizes_has_no_knee(curve: list[tuple[float, float]]) -> None:
    assert [] == sweep.knees(curve)


# -- releases --------------------------------------------------------------------------------------


def row(profile: str, cached: int, lost: dict[str, int], **settings: int) -> dict[str, Any]:
    return {
        "profile": profile,
        "model": "dense",
        "settings": settings,
        "cached": cached,
        "rate": cached / 100,
        "lost": lost,
    }


def test_an_upgrade_is_told_for_each_pair_with_all_else_alike() -> None:
    found = sweep.upgrades(
        [
            row("bound", 60, {}),
            row("x@1", 30, {"a": 20, "b": 10}, size=1),
            row("x@1", 50, {"a": 10}, size=2),
            row("x@2", 45, {"a": 12, "c": 3}, size=1),
            row("x@2", 50, {"a": 10}, size=2),
            row("y@1", 10, {"a": 50}, size=1),
        ]
    )

    first = sweep.Upgrade(
        server="x, dense, size=1",
        before="1",
        after="2",
        reused=15,
        points=15.0,
        lost={"b": -10, "a": -8, "c": 3},
    )
    assert first == found[0]
    assert (2, False) == (len(found), found[1].changes)
    text = "2 pairs of releases compared, all else equal: 1 without a difference."
    assert text == sweep.sentence_of(found)
    alike = "No difference between releases (1 pair compared, all else equal)."
    assert alike == sweep.sentence_of(found[1:])


def test_what_a_release_reuses_more_is_what_it_loses_less() -> None:
    found = sweep.upgrades(rows())

    assert 2 == len(found)
    assert any(each.changes for each in found)
    assert [each.reused for each in found] == [-sum(each.lost.values()) for each in found]


# -- bytes -----------------------------------------------------------------------------------------


def drawn(held: Held, spec: ModelSpec, groups: int) -> tuple[int, ...]:
    """Tokens of attention and of windows, states over all groups, parked bytes, as a model has."""
    cells = {
        place: sum(run.count for part in held.cells if part.part == place for run in part.runs)
        for place in ("attention", "window")
    }
    parked = sum(entry.size for entry in held.entries)
    return (*of_model((*cells.values(), len(held.rows) // groups), spec), parked)


def of_model(numbers: tuple[int, ...], spec: ModelSpec) -> tuple[int, ...]:
    return tuple(n if size else 0 for n, size in zip(numbers, sizes_of(spec), strict=True))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["dense", "hybrid", "swa"])
@pytest.mark.parametrize("profile", SERVERS)
def test_amounts_are_what_pages_draw_in_numbers(profile: str, model: str) -> None:
    cell = Cell(source=Source(name="made:24:4", scale=64), profile=profile, model=model)
    engine = cell.engine("ring", vocabulary=VOCABULARY)
    spec = engine.network.spec
    groups = getattr(getattr(engine, "manager", None), "groups", ())
    states = max(1, sum(group.kind == "mamba" for group in groups))  # vLLM: a row in each group
    for _ in spelled(engine, cell, 24):
        held, found = engine.held(), engine.amounts()
        numbers = of_model((found.attention, found.window, found.states), spec)
        assert drawn(held, spec, states) == (*numbers, found.prompt_cache)
        assert any(slot.checkpoints for slot in held.slots) == bool(found.checkpoints)


def test_a_timeline_is_short_however_long_a_trace_is() -> None:
    over = Timeline()
    for requests in range(1, 10_001):
        if over.is_recorded(requests):
            over.add(requests, {"attention": requests, "parked": 0})

    found = over.as_dict()

    assert {"requests", "attention"} == set(found)
    assert found["requests"] == found["attention"]
    assert MOMENTS // 2 <= len(found["requests"]) <= MOMENTS
    assert [512 * at for at in range(1, 20)] == found["requests"]


def test_the_table_for_a_notebook_has_the_most_of_each_kind() -> None:
    (found, *_) = rows()

    plain = flat(found)

    assert {"attention", "states", "checkpoints", "parked"} == set(found["held"]) - {"requests"}
    assert max(found["held"]["parked"]) == plain["held.parked"]
    assert "held" not in plain


def test_bytes_are_told_in_words_and_drawn_as_characters() -> None:
    assert ["0 bytes", "1,023 bytes", "1.0 KiB", "2.5 MiB"] == [
        sweep.in_words(size) for size in (0, 1023, 1024, 2.5 * 2**20)
    ]
    assert "▁▅█" == sweep.sparkline([0, 50, 100], 100)
    assert "▁▁" == sweep.sparkline([0, 0], 0)


# -- pages -----------------------------------------------------------------------------------------


def test_changes_are_drawn_on_their_side_of_the_line() -> None:
    drawn = balance_bars({"a <b>": {"p": 30, "q": -10}, "c": {"q": -70}}, title="t")

    svg = ET.fromstring(drawn.partition("<ul")[0])
    (line,) = (float(each.get("x1", 0)) for each in svg.iter("line"))
    bars = [each for each in svg.iter("rect") if each.get("y")]
    spans = [(float(b.get("x", 0)), float(b.get("width", 0))) for b in bars]
    assert (3, True) == (len(spans), spans[0][0] + spans[0][1] <= line + 0.1)
    assert all(left >= line - 0.1 for left, _ in spans[1:])
    whole = sum(width for _, width in spans)
    assert [30, 10, 70] == [round(110 * width / whole) for _, width in spans]


def test_areas_stand_one_upon_the_other_and_reach_the_top() -> None:
    drawn = stacked_areas(
        [1, 2, 3],
        {"states": [0, 5, 10], "attention": [10, 5, 0]},
        kinds=["attention", "states"],
        most="10 bytes",
        top=10,
        title="t",
    )

    areas = re.findall(r'points="([^"]+)"', drawn)
    heights = [{point.split(",")[1] for point in area.split()} for area in areas]
    assert 2 == len(areas)
    assert "20.0" in heights[1]
    assert "130.0" in heights[0]
    ET.fromstring(drawn)


def test_page_and_screen_tell_knees_releases_and_bytes() -> None:
    found = rows()

    page = html_page("plan.toml", *sweep.sweep_report(found, "plan.toml"))
    assert "difference between releases, in tokens" in page
    assert "bytes held by kind, over the requests" in page
    assert 4 == page.count("<figcaption>")
    screen = plain_text(*sweep.sweep_report(found))
    for part in ("reused, over cache_ram", "difference between releases", "bytes held by kind"):
        assert part in screen


def test_a_server_that_refuses_requests_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "compare",
        "made:20",
        "-p",
        "vllm@0.33.0",
        "--set",
        "max_model_len=40",
        "--scale",
        "32",
    ]

    assert 0 == main([*flags, "--format", "json"])
    (row,) = (load for load in json.loads(capsys.readouterr().out) if load["refused"])
    said = "vllm@0.33.0 refused requests; the first one: the maximum context length is 40 tokens"
    assert any(note.startswith(said) for note in row["notes"])
