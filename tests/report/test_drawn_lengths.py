"""Pictures tell the numbers: what is drawn as cached and as lost is what the tables say."""

import re
from collections import Counter
from pathlib import Path

import pytest
from pages.gallery import bars

from cachesim.play import run
from cachesim.play.result import Run, Step
from cachesim.report.picture import after, request
from cachesim.report.playground import frames
from cachesim.report.story import prompt_parts
from cachesim.report.tables import step_cell
from cachesim.scenario import full_profile, load
from cachesim.scenario.shipped import shipped_file, shipped_files


def column(step: Step) -> int:
    """The number under `lost` in the table of a terminal."""
    *_, last = step_cell(step).plain.split()
    return int(last) if step.reuse == "lost" else 0


def lengths(result: Run, index: int) -> dict[str, int]:
    """Tokens of a request's bar by how they are drawn."""
    drawn: Counter[str] = Counter()
    for row in request(result, index):
        for bar in row.bars:
            drawn["cached" if bar.kind in {"shared", "wrong"} else bar.kind] += bar.end - bar.start
    return dict(+drawn)


def told(step: Step) -> dict[str, int]:
    cached, lost = min(step.cached or 0, step.size), column(step)
    return dict(+Counter(cached=cached, again=lost, new=step.size - cached - lost))


def in_signs(step: Step) -> dict[str, int]:
    """The same of the signs of `--explain` and of notebooks."""
    words = {"=": "cached", "^": "cached", "~": "again", "+": "new"}
    drawn: Counter[str] = Counter()
    for sign, count in prompt_parts(step):
        drawn[words[sign]] += count
    return dict(+drawn)


def most_again(result: Run, index: int) -> int:
    """The most tokens of a row of memory that are drawn as lost."""
    picture = after(result, index)
    rows = () if picture is None else picture.rows
    return max(
        (
            sum(bar.end - bar.start for bar in row.bars if bar.kind == "again")
            for row in rows
            if row.kind != "request"
        ),
        default=0,
    )


@pytest.mark.sampled(60)
@pytest.mark.parametrize("path", shipped_files(), ids=lambda path: path.stem)
def test_every_picture_of_a_request_has_the_lengths_of_its_table(path: Path) -> None:
    scenario = load(path)
    for name in scenario.engine.profiles:
        profile = full_profile(scenario.engine.name, name)
        result = run(scenario, profile, arithmetic="ring", detail=True)
        for index, step in enumerate(result.steps):
            if step.cached is None or step.detail is None or not step.detail.prompt:
                continue
            place = f"{path.stem} on {profile}, {step.name}"
            assert told(step) == lengths(result, index), place
            assert most_again(result, index) <= column(step), place
            assert bool(column(step)) == ('"again"' in bars([step], step)), place
            if step.explanation is not None:
                assert told(step) == in_signs(step), place


def test_a_loss_is_drawn_where_the_table_has_one_and_a_wrong_answer_has_none() -> None:
    lost, wrong = (
        run(
            load(shipped_file(name)),
            full_profile("llama.cpp", release),
            arithmetic="ring",
            detail=True,
        )
        for name, release in (
            ("llama.cpp-24143-load-consumes-entry", "b9538"),
            ("llama.cpp-two-codes", "b11549"),
        )
    )

    assert [99] == [n for i in range(len(lost.steps)) if (n := lengths(lost, i).get("again", 0))]
    assert [0, 0, 0, 0] == [lengths(wrong, i).get("again", 0) for i in range(4)]
    (step,) = (i for i, each in enumerate(lost.steps) if column(each))
    last = list(frames(lost, step))[-1]
    assert [99] == [bar.end - bar.start for bar in last.rows[0].bars if bar.kind == "again"]
    assert re.search(r'class="again"[^>]*width="[1-9]', bars(lost.steps, lost.steps[step]))
