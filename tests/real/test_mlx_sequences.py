from collections import Counter
from random import Random
from typing import Any, Self

import pytest

from cachesim.errors import ProfileError
from cachesim.lab.real.mlx_lm import classes as room
from cachesim.lab.real.mlx_lm.cache_player import played
from cachesim.lab.real.mlx_lm.classes import (
    GROUPS,
    RealClasses,
    compare_classes,
    draw,
    draw_cache_sequence,
)
from cachesim.lab.real.mlx_lm.process import environment_for

RELEASES = ("0.30.7", "0.31.1", "0.31.3", "0.32.2")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", RELEASES)
def test_drawn_sequences_can_be_played_and_end_where_the_port_raises(release: str) -> None:
    for number in range(44):
        sequence = draw(release, 5, number)
        results = list(played(sequence))
        assert len(sequence["ops"]) == len(results)
        if sequence["group"] != "trie":
            assert all("error" not in result for result in results[:-1])


def test_the_same_seed_draws_the_same_sequences() -> None:
    assert draw("0.32.2", 1, 7) == draw("0.32.2", 1, 7)
    assert draw("0.32.2", 1, 7) != draw("0.32.2", 2, 7)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("group", GROUPS)
def test_every_group_meets_its_class_and_many_operations(group: str) -> None:
    found: Counter[str] = Counter()
    classes = set()
    for seed in range(40):
        sequence = draw_cache_sequence("0.32.2", group, Random(seed))
        found.update(op["op"] for op in sequence["ops"])
        for result in played(sequence):
            classes |= {each["class"] for each in result.get("after", {}).values()}

    assert group in classes
    assert 6 <= len(found)


class Other:
    """Classes whose third operation returns something else."""

    def __init__(self, _release: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def play(self, sequence: Any) -> list[dict[str, Any]]:
        results = list(played(sequence))
        results[2] = {"ret": "something else"}
        return results


def test_operations_behind_a_difference_count_as_disagreeing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "RealClasses", Other)
    sequence = draw("0.32.2", 0, 0)
    agreement = compare_classes("0.32.2", 0, 1)

    count = len(list(played(sequence)))
    assert (count, 2) == (agreement.total("operations"), agreement.total("agreeing"))
    assert not agreement.all_agree


def test_a_release_that_cannot_be_installed_here_is_refused() -> None:
    with pytest.raises(
        ProfileError, match=r"no package runs mlx-lm@0\.31\.0 for real; there are 0\.29\.1"
    ):
        RealClasses("0.31.0")


def test_a_release_that_names_no_tokenizers_gets_those_of_its_day() -> None:
    assert "transformers==4.57.3" in environment_for("0.29.1").requirements


def test_older_releases_get_the_older_array_runtime() -> None:
    assert ("mlx[cpu]==0.30.6", "mlx-lm==0.31.1") == environment_for("0.31.1").requirements
