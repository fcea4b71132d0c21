"""The benchmark of bugs: which defects there are, and what counts as found."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.bugs import Row, faster, missing, read, row_of, table, write
from benchmarks.defects import BEYOND, RARE, Defect, defects
from benchmarks.searches import METHODS, scope


@cache
def known() -> Defect:
    """A defect that a few workloads show."""
    return next(defects("mlx-lm-1908"))


def test_defects_of_every_engine_with_their_controls_come_from_the_scenarios() -> None:
    found = list(defects())

    assert len(found) >= 80
    assert {"wrong", "crash", "lost", "less"} == {each.effect for each in found}
    assert {"llama.cpp", "ik_llama.cpp", "mlx-lm", "vllm", "sglang"} <= {
        each.profile.engine for each in found
    }
    assert all(each.profile != each.control for each in found)
    assert BEYOND.keys() | RARE.keys() <= {each.name for each in found}


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["random", "guided", "hypothesis"])
def test_a_blind_search_finds_a_defect_and_shrinks_it(how: str) -> None:
    search = METHODS[how](known(), 0, 5)
    row = row_of(search, how, shrinks=True)

    assert search.found is not None
    assert row.steps <= len(search.found.step)
    assert 0 < row.tokens <= 100
    assert shown(row).startswith(how)


def test_a_small_scope_finds_a_defect_and_ends() -> None:
    found = scope(known(), 0, 9, requests=2)
    other = scope(replace(known(), control=known().profile), 0, 9, requests=2)

    assert found.found is not None
    assert 2 == len([step for step in found.found.step if step.do == "complete"])
    assert (None, 54) == (other.found, other.workloads)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("name", ["mlx-lm-1908", "mlx-lm-1078", "llama.cpp-20225", "mlx-lm-983"])
def test_nothing_is_found_where_the_profile_is_its_own_control(how: str, name: str) -> None:
    defect = next(defects(name))

    search = METHODS[how](replace(defect, control=defect.profile), 0, 0.3)

    assert search.found is None
    assert search.workloads > 0


def test_a_file_keeps_searches_and_only_missing_ones_are_repeated(tmp_path: Path) -> None:
    file = tmp_path / "bugs.csv"
    rows = [line("a", "guided", 1, 0.5), line("b", "guided", 1, 2, found=False)]

    write(file, rows)
    kept = read(file)

    assert rows == sorted(kept.values(), key=lambda row: row.defect)
    names = {defect.name for defect in defects("mlx-lm-1908")}
    kept = {each.key: each for each in (line(name, "guided", 1, 2, found=False) for name in names)}
    assert [] == list(missing(kept, ["guided"], [1], 2, "mlx-lm-1908"))
    assert names == {each.name for each, *_ in missing(kept, ["guided"], [1], 3, "mlx-lm-1908")}


def test_a_defect_counts_once_by_the_median_of_its_seeds() -> None:
    """Of a: 0.1 to 1 s, ten times faster; of b: only one search finds it; c: neither."""
    rows = [
        *(line("a", "guided", seed, time) for seed, time in enumerate((0.1, 0.1, 9))),
        *(line("a", "random", seed, 1) for seed in range(3)),
        line("b", "guided", 1, 1),
        line("b", "random", 1, 3, found=False),
        line("c", "guided", 1, 3, found=False),
        line("c", "random", 1, 3, found=False),
        *(line("d", how, 1, 1) for how in ("guided", "random")),
    ]

    assert faster(rows, "guided", "random") == pytest.approx(10)


def line(defect: str, how: str, seed: int, seconds: float, *, found: bool = True) -> Row:
    return Row(
        defect=defect,
        effect="wrong",
        profile="mlx-lm@0.31.2",
        model="swa",
        how=how,
        seed=seed,
        seconds=seconds,
        workloads=1,
        found=found,
    )


def shown(row: Row) -> str:
    console = Console(width=140, color_system=None)
    with console.capture() as capture:
        console.print(table([row]))
    return next(text for text in capture.get().splitlines() if "1 of 1" in text).strip(" │")
