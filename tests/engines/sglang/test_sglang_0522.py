"""What 0.5.22 decides otherwise than 0.5.23, each by one rule, in the shortest workload found."""

from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.rules import Rules
from cachesim.lab.real.sglang.playing import play

OLD, NEW = (FAMILY.release(release).rules for release in ("0.5.22", "0.5.23"))


def asked(prompt: str, generate: int = 1, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "generate": generate, "reply": "9000-9099"} | more


def played(rules: Rules, config: dict[str, Any], *steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The last step of a workload."""
    return play({"config": config, "steps": list(steps)}, rules)[-1]


def chunks(told: dict[str, Any]) -> list[Any]:
    return [each["chunks"] for each in told["requests"]]


def test_rows_that_the_batch_holds_are_not_free() -> None:
    """The last piece of a prompt leaves half a chunk, and one row is free beside its own."""
    config = {"kind": "full", "chunk": 8, "max_running": 2, "tokens": 400}
    group = [asked("1-20"), asked("101-110")]

    old, new = (chunks(played(rules, config, group)) for rules in (OLD, NEW))

    assert [[0, 8], [8, 10]] == old[1]
    assert [[0, 4], [4, 10]] == new[1]


def test_a_finished_request_leaves_the_running_batch_when_it_decodes() -> None:
    """The second request is there for one pass only: the one in which the first has just ended."""
    config = {"kind": "full", "max_running": 1, "tokens": 400}
    group = [asked("1-20", 4), asked("101-110", arrives=4, aborted=5)]

    old, new = (chunks(played(rules, config, group)) for rules in (OLD, NEW))

    assert ([], [[0, 10]]) == (old[1], new[1])


def test_a_chunk_that_is_spent_is_seen_after_the_first_waiting_request() -> None:
    config = {"kind": "mamba", "strategy": "extra_buffer", "states": 9, "tokens": 92}
    config |= {"chunk": 2, "max_running": 3}
    group = [asked("1-24", 2), asked("1-24", 2), asked("1-39"), asked("101-136")]

    old, new = (chunks(played(rules, config, group)) for rules in (OLD, NEW))

    assert ([0, 1], [0, 2]) == (old[3][0], new[3][0])


WINDOWS = {"kind": "window", "page": 16, "tokens": 160, "window": 40, "window_tokens": 128}


def test_of_a_window_as_many_tokens_are_kept_and_no_whole_pages() -> None:
    old, new = (played(rules, WINDOWS | {"chunk": 64}, [asked("1-81")]) for rules in (OLD, NEW))

    assert [[0, 16, 16, 0], [0, 64, 48, 1], [0, 80, 16, 1]] == old["tree"]
    assert [[0, 16, 16, 1], [0, 64, 48, 1], [0, 80, 16, 1]] == new["tree"]


def test_a_match_that_ends_before_what_was_inserted_frees_the_slots_of_the_tree() -> None:
    """The last page's window is short of the model's: the request goes on with slots of its own,
    and the next insertion takes the tree's for duplicates.
    """
    config = WINDOWS | {"chunk": 57}
    rules = replace(OLD, tree=replace(OLD.tree, holds_what_it_inserts=True))

    assert "pool memory leak detected" == played(OLD, config, [asked("1-127")])["error"]
    assert "error" not in played(rules, config, [asked("1-127")])
    assert "error" not in played(NEW, config, [asked("1-127")])


@pytest.mark.thorough
def test_write_back_copies_windows_that_came_after_their_node_was_copied() -> None:
    config = {"kind": "window", "tokens": 192, "window": 8, "window_tokens": 40, "chunk": 1}
    config |= {"host": {"policy": "write_back", "ratio": 1.0}}
    steps = [asked("1-180")], [asked("1-90 1001-1009")]

    old, new = (played(rules, config, *steps)["tree"] for rules in (OLD, NEW))

    twice = [sum(row[-2:] == [1, 1] for row in tree) for tree in (old, new)]
    assert [31, 0] == twice


@pytest.mark.parametrize(("rules", "cached"), [(OLD, 0), (NEW, 64)])
def test_the_time_for_a_storage_depends_on_the_pages_found(rules: Rules, cached: int) -> None:
    """A check for each token: 70 from the first check, or none until the storage has answered."""
    storage = {"policy": "timeout", "threshold": 20, "lag": 2, "timeout_base": 0}
    storage["timeout_per_ki_token"] = 1024.0
    host = {"policy": "write_through", "ratio": 2.0, "storage": storage}
    others = [[asked(f"{at}-{at + 199}")] for at in range(1000, 7000, 1000)]
    config = {"kind": "full", "tokens": 400, "host": host}

    told = played(rules, config, [asked("1-64")], *others, [{"reset": True}], [asked("1-70")])

    assert cached == told["requests"][0]["cached"]
