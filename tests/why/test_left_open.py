"""Advice stands every prompt, and every order of arrival, that a log leaves open."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from cachesim.typed import of_kind
from cachesim.why.advise import tuning
from cachesim.why.advise.orders import Order, other_orders, overlapping
from cachesim.why.advise.tuning import (
    Trial,
    Tuned,
    confirmed,
    of_dump,
    of_log,
    runs_of,
    summary,
)
from cachesim.why.advise.what_if import swept
from cachesim.why.advise.workloads import meets_more
from cachesim.why.explain import whole
from cachesim.why.explain.whole import UserSettings, read_files, replays_of
from cachesim.why.replay.other import Workload
from cachesim.why.replay.replayed import Replay
from tests.dumps import read_dump
from tests.why.test_log_report import JUNE, finished, launched

AGENTS: Final = Path(__file__).with_name("agents-default-level.log")
"""Agents and a hybrid model at the default level: no line compares the prompt cache's entries. With
--checkpoint-min-step 64 the real server prefilled 1,853 tokens fewer, the likeliest prompts 3,664.
"""


def replayed(path: Path, model: str = "hybrid", release: str = "b10566") -> Replay:
    with path.open("rb") as file:
        user = UserSettings(profile=release, model=model)
        (replay,) = replays_of(read_files([(path.name, file)]), user)
    return replay


def test_a_saving_that_depends_on_where_a_prompt_parts_is_not_promised() -> None:
    runs = runs_of([replayed(AGENTS)])
    options = {**runs[0].options, "checkpoint_min_step": 64}
    fewer = {
        sum(runs[0].proof.logged.values()) - runs[0].proof.prefilled(one.outcome(options).played)
        for one in runs[0].all_that_fits()
    }

    assert {1853, 3664} <= fewer

    untried = [replace(run, others=(), replay=None) for run in runs]
    own = tuning.run_trial(Trial(tuple(untried)))
    best = tuning.run_trial(Trial(tuple(untried), {"checkpoint_min_step": 64}))
    assert own is not None
    assert best is not None
    likeliest = confirmed([own, best], Tuned(tuple(untried), ""))[0]
    assert best == likeliest
    recommended, reason = confirmed([own, best], Tuned(tuple(runs), ""))
    assert own == recommended
    assert "1,853 tokens fewer for some that fit, 3,664 tokens fewer for others" in reason


EXPLAINS: Final = Path(__file__).with_name("least-that-explains.log")
"""Request 15 was resumed at token 168 of an entry: so much of it is equal that it
is loaded, and no line says how much. With --ubatch-size 736 the real server saved nothing.
"""


def test_the_least_that_a_prompt_shares_is_what_explains_its_count_not_what_its_line_bounds() -> (
    None
):
    runs = runs_of([replayed(EXPLAINS, release="b11549")])
    own, best = (tuning.run_trial(Trial(tuple(runs), each)) for each in ({}, {"ubatch_size": 736}))

    assert own is not None
    assert best is not None
    assert 681 == own.processed - best.processed
    assert "0 tokens fewer for some that fit" in confirmed([own, best], Tuned(tuple(runs), ""))[1]


@pytest.mark.parametrize(
    ("compared", "reason"),
    [(False, "with which no line of the log compares them"), (True, "the saving depends on")],
)
def test_a_setting_that_keeps_what_the_server_lost_is_proven_only_where_the_log_compares_prompts(
    monkeypatch: pytest.MonkeyPatch, reason: str, *, compared: bool
) -> None:
    monkeypatch.setattr(tuning, "compares", lambda _: compared)
    runs = runs_of([replayed(EXPLAINS, release="b11549")])
    own, other = (
        tuning.run_trial(Trial(tuple(runs), each)) for each in ({}, {"slot_prompt_similarity": 0.1})
    )

    assert own is not None
    assert other is not None
    tempting = replace(other, processed=own.processed // 2)
    assert reason in confirmed([own, tempting], Tuned(tuple(runs), ""))[1]


def test_a_size_of_batches_alone_lets_no_request_meet_another_conversation() -> None:
    (run,) = runs_of([replayed(AGENTS)])
    workload = of_kind(Workload, run.subject)

    assert not meets_more(workload, run.options, {**run.options, "ubatch_size": 1024})
    assert meets_more(workload, run.options, {**run.options, "parallel": 2})


def test_every_other_prompt_is_answered_as_the_log_says() -> None:
    (run,) = runs_of([replayed(AGENTS)])

    assert 12 == len(run.proof.logged)
    for other in run.all_that_fits():
        assert run.proof.is_met(other.outcome(run.options).played)


L0, L1, L2, L3 = (("launch", number) for number in range(4))
F0, F1, F2, F3 = (("finish", number) for number in range(4))


@pytest.mark.parametrize("order", [(), (L0, F0), (L0, F0, ("erase", 0), L1, F1)])
def test_requests_one_by_one_have_no_other_order(order: Order) -> None:
    assert [] == other_orders(order, 4)


def test_overlapping_requests_may_come_in_other_orders() -> None:
    found = other_orders((L0, L1, F0, F1, L2, F2), 4)

    assert (L1, L0, F0, F1, L2, F2) in found
    assert (L0, F0, L1, F1, L2, F2) in found
    assert (L0, L1, F0, L2, F1, F2) in found  # two slots were idle: it may have come earlier
    assert (L0, L1, F0, F1, L2, F2) not in found
    for other in found:
        assert sorted((L0, L1, L2, F0, F1, F2)) == sorted(other)


def test_a_request_does_not_come_earlier_where_every_slot_was_busy() -> None:
    found = other_orders((L0, L1, F0, F1, L2, L3, F2, F3), 2)

    assert [] == [other for other in found if other.index(L2) < other.index(F1)]


def test_a_promise_of_overlapping_requests_stands_their_other_orders(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        launched(1, "LRU, t_last = -1", level=JUNE, slot=3)
        + launched(2, "LRU, t_last = -1", level=JUNE, slot=2)
        + finished(1, read=900, said=4, held=903, slot=3)
        + finished(2, read=700, said=4, held=703, slot=2)
    )
    (run,) = runs_of([replayed(log, "dense")])

    orders = {getattr(each, "order", ()) for each in run.all_that_fits()}
    assert (L1, L0, F0, F1) in orders
    assert (L0, F0, L1, F1) in orders


@pytest.mark.parametrize(("slot", "found"), [(1, {0, 1}), (0, set[int]())])
def test_requests_of_one_slot_never_overlap_though_a_cut_log_lacks_an_end(
    slot: int, found: set[int]
) -> None:
    assert found == overlapping((L0, L1, F1), {0: 0, 1: slot})


COMPARED: Final = "slot get_availabl: id  3 | task -1 |  - checking sim = 0.001 (1/700) > 0.100\n"


def two_at_once(second: int, compared: str = "") -> str:
    """Two requests that overlap: the first of 900 tokens."""
    return (
        launched(1, "LRU, t_last = -1", level=JUNE, slot=3)
        + compared
        + launched(2, "LRU, t_last = -1", level=JUNE, slot=2)
        + finished(1, read=900, said=4, held=903, slot=3)
        + finished(2, read=second, said=4, held=second + 3, slot=2)
    )


def one_alone(task: int, tokens: int) -> str:
    alone = launched(task, "LRU, t_last = -1", level=JUNE, slot=1)
    return alone + finished(task, read=tokens, said=4, held=tokens + 3, slot=1)


@pytest.mark.parametrize(
    ("lines", "withheld"),
    [
        (two_at_once(700), True),
        (two_at_once(700, COMPARED), False),
        (two_at_once(700) + one_alone(3, 90_000), False),  # 2 % are no reason to say nothing
        (one_alone(1, 900) + one_alone(2, 700), False),
    ],
)
def test_nothing_is_promised_where_no_line_says_which_overlapping_prompts_begin_alike(
    tmp_path: Path, lines: str, *, withheld: bool
) -> None:
    log = tmp_path / "server.log"
    log.write_text(lines)
    tuned = of_log([replayed(log, "dense")], None)
    found = summary(swept(tuned), tuned)

    assert withheld == ("2 requests overlapped" in found["withheld"])
    assert withheld == (len(found["tried"]) == 1)


PRINTED: Final = Path(__file__).with_name("printed-prefix.log")
"""A prompt that begins like one of another slot, as `checking sim` prints; no slot is resumed."""


def test_prompts_begin_as_the_log_prints_though_other_hints_agree_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [] == [each for each in replayed(PRINTED, release="b11549").requests if each.shares_less]

    monkeypatch.setattr(whole, "_with_printed_prefixes", lambda replay, *_: replay)
    less = [each for each in replayed(PRINTED, release="b11549").requests if each.shares_less]
    assert 2 in [each.observed.number for each in less]
    assert all(each.agrees for each in less)  # the counts alone do not show it


RECORDED: Final = Path(__file__).parents[2] / "docs" / "examples" / "recorded.jsonl"


@pytest.mark.parametrize(("seconds", "orders"), [(1.0, 0), (9.0, 5)])
def test_a_recording_in_which_requests_overlap_has_other_orders_too(
    seconds: float, orders: int
) -> None:
    with RECORDED.open("rb") as file:
        requests = [replace(each, seconds=seconds) for each in read_dump("recorded", file)]
    (run,) = of_dump(requests, UserSettings(options={"parallel": 4}), None).runs

    likeliest, *others = run.all_that_fits()
    assert orders == len(others)
    for other in others:
        assert likeliest.outcome(run.options).failed == other.outcome(run.options).failed == 0
