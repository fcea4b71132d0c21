"""The benchmark of bugs: which defects there are, and what counts as found."""

from dataclasses import replace
from functools import cache

import pytest
from rich.console import Console

from benchmarks.bugs import rows, searched, table
from benchmarks.defects import BEYOND, Defect, defects


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
    assert BEYOND.keys() <= {each.name for each in found}


@pytest.mark.thorough
def test_a_blind_search_finds_a_defect_and_shrinks_it() -> None:
    search = searched(known(), seed=0, seconds=5)
    (row,) = rows([search])

    assert search.found is not None
    assert row["shrunk"][0] <= len(search.found.step)
    assert 0 < row["shrunk"][1] <= 100
    assert shown(row).startswith(known().profile.engine)


def test_a_small_scope_finds_a_defect_and_ends() -> None:
    found = searched(known(), seed=0, seconds=9, scope=2)
    other = searched(replace(known(), control=known().profile), seed=0, seconds=9, scope=2)

    assert found.found is not None
    assert 2 == len([step for step in found.found.step if step.do == "complete"])
    assert (None, 54) == (other.found, other.workloads)


def test_nothing_is_found_where_the_profile_is_its_own_control() -> None:
    search = searched(replace(known(), control=known().profile), seed=0, seconds=0.3)

    assert search.found is None
    assert search.workloads > 0


def shown(row: dict[str, object]) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(table([row]))
    return next(line for line in capture.get().splitlines() if "1 of 1" in line).strip(" │")
