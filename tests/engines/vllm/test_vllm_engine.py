from typing import Any, Final

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.images import Image
from cachesim.engines.vllm import vocabulary
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.server import Vllm
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.typed import of_kind, there_is
from cachesim.units import Count, Pos, Tokens, as_tokens
from conformance.real.vllm.playing import play
from tests.engines.asking import answer, cached, verdict
from tests.engines.conversations import wrong
from tests.engines.vllm.defects import DEFECTS, MOST_REQUESTS, Defect
from tests.engines.vllm.workloads import Workload


def text(first: int, count: int) -> Tokens:
    return as_tokens(range(first, first + count))


def server(profile: str, model: str = "hybrid", **options: Any) -> Engine:
    return Engine.create(f"vllm@{profile}", model=preset(model), options=options)


def test_salts_keep_conversations_apart() -> None:
    engine = server("0.33.0", "dense")
    answer(engine, text(300, 64), 1, options={"cache_salt": "a"})

    other = answer(engine, text(300, 65), 1, options={"cache_salt": "b"})
    same = answer(engine, text(300, 65), 1, options={"cache_salt": "a"})

    assert (0, 64) == (other.cached, same.cached)


def test_accepted_drafts_and_preemption_leave_the_answer_as_it_is() -> None:
    options = {"speculative_method": "eagle", "num_speculative_tokens": 3, "block_size": 4}
    engine = server("0.33.0", "hybrid-delta", **options)

    assert "same" == verdict(engine, answer(engine, text(300, 10), 12, reply=text(320, 12)))
    assert any(event.name() == "drafts-verified" for event in engine.events)


def test_a_unit_that_a_single_group_would_ignore_is_refused_since_033() -> None:
    with pytest.raises(OptionError, match="write 16"):
        server("0.33.0", "dense", prefix_match_unit=4)
    server("0.33.0", "dense", prefix_match_unit=16)
    server("0.33.0", "dense", prefix_match_unit=4, enable_prefix_caching=False)

    before = server("0.30.0", "dense", prefix_match_unit=4)
    assert [0, 32] == cached(before, text(300, 46), text(300, 46), predict=1)


def test_drafts_in_all_mode_leave_no_state_at_a_boundary_that_they_pass() -> None:
    engine = server("0.24.0", "hybrid", mamba_cache_mode="all", speculative_method="eagle")
    first = answer(engine, text(300, 46), 20, reply=text(400, 20))
    again = answer(engine, first.prompt + first.generated + text(280, 9), 1)

    assert 64 == again.cached
    assert ["same", "diverged"] == [verdict(engine, each) for each in (first, again)]


@pytest.mark.parametrize(
    ("profile", "found"), [("0.33.0", "same"), ("0.33.0+skips-aborted", "diverged")]
)
def test_a_chunk_runs_though_its_request_is_aborted_and_others_read_it(
    profile: str, found: str
) -> None:
    engine = server(profile, "dense", async_scheduling=True)
    gone, stays = (
        engine.submit(Request(prompt=text(300, 40) + text(400 + 20 * at, 9), predict=2))
        for at in range(2)
    )
    engine.step()  # both are scheduled; the second was given the first one's blocks
    engine.cancel(gone)
    engine.run()

    reply = there_is(engine.reply(stays))
    assert (32, found) == (reply.cached, verdict(engine, reply))


def test_a_step_is_scheduled_before_the_output_of_the_previous_one() -> None:
    engine = server("0.33.0", "hybrid", async_scheduling=True, max_num_batched_tokens=16)
    reply = answer(engine, text(300, 40), 3)

    kinds = (vocabulary.ChunkScheduled, vocabulary.StepWritten)
    shown = [
        f"{event.start}-{event.end}" if isinstance(event, vocabulary.ChunkScheduled) else "written"
        for event in engine.events
        if isinstance(event, kinds)
    ]
    steps = ["0-16", "16-32", "written", "32-40", "written", "40-41", "written", "41-42"]
    assert [*steps, "written", "written"] == shown
    assert "same" == verdict(engine, reply)


@pytest.mark.parametrize("release", FAMILY.real())
def test_beside_n_grams_a_step_waits_for_the_last_one_until_0_32(release: str) -> None:
    methods = ("none", "eagle", "mtp", "ngram")
    servers = [of_kind(Vllm, server(release, "dense", speculative_method=m)) for m in methods]

    expected = [True, True, True, release in FAMILY.since("0.33.0")]
    assert expected == [each.scheduler.limits.overlaps for each in servers]


def test_a_step_beside_drafts_is_scheduled_as_if_all_were_accepted() -> None:
    """The step after a prompt, the next one, and those that know what it refused."""
    engine = server("0.33.0", "dense", speculative_method="eagle")
    reply = text(400, 9)
    refused = as_tokens([7, 7])
    drafts = (reply[1:3], refused, reply[5:6] + refused[:1])
    asked = Request(prompt=text(300, 20), predict=9, reply=reply, drafts=drafts)
    ticket = engine.submit(asked)
    engine.run()

    shown = [event for event in engine.events if isinstance(event, vocabulary.ChunkScheduled)]
    chunks = [(each.start, each.end) for each in shown]
    verified = [e.accepted for e in engine.events if isinstance(e, vocabulary.DraftsVerified)]
    assert [(0, 20), (20, 23), (23, 26), (26, 29), (27, 30)] == chunks[:5]
    assert [2, 0, 1] == verified[:3]
    assert "same" == verdict(engine, there_is(engine.reply(ticket)))


def test_a_request_whose_image_waits_lets_others_pass_since_0_33() -> None:
    for release, order in (("0.32.0", [0, 1, 2]), ("0.33.0", [0, 2, 1])):
        engine = server(release, "dense", max_num_batched_tokens=12, max_num_seqs=3)
        for at, (length, image) in enumerate(((8, 6), (20, 8), (4, 0))):
            images = (Image(f"i{at}", Pos(0), Count(image)),) if image else ()
            engine.submit(Request(prompt=text(300 + 30 * at, length), predict=1, images=images))
        engine.run()

        first = (
            event.task for event in engine.events if isinstance(event, vocabulary.ChunkScheduled)
        )
        assert order == [*dict.fromkeys(first)], release


@pytest.mark.parametrize(
    ("profile", "model", "found"),
    [
        ("0.33.0", "hybrid", "same"),
        ("0.33.0+prefills-lead", "hybrid", "diverged"),
        ("0.33.0+prefills-lead", "hybrid-delta", "same"),
    ],
)
def test_a_prefill_chunk_as_long_as_a_decode_spoils_a_request_that_nothing_is_drafted_for(
    profile: str, model: str, found: str
) -> None:
    options = {"speculative_method": "ngram", "num_speculative_tokens": 2}
    engine = server(profile, model, **options, async_scheduling=False)
    reply = text(400, 8)
    drafted = engine.submit(
        Request(prompt=text(300, 20), predict=8, reply=reply, drafts=(reply[1:3],))
    )
    for _ in range(2):
        engine.step()  # the prompt, then both drafts
    engine.submit(Request(prompt=text(350, 3), predict=1))
    engine.run()

    assert found == verdict(engine, there_is(engine.reply(drafted)))


@pytest.mark.parametrize("profile", ["0.33.0", "0.33.0+skips-aborted"])
def test_an_aborted_request_leaves_nothing_behind_once_its_step_has_come_back(profile: str) -> None:
    engine = server(profile, "dense", async_scheduling=True)
    gone, stays = (
        engine.submit(Request(prompt=text(300 + 50 * at, 40), predict=2, reply=text(290, 2)))
        for at in range(2)
    )
    engine.step()  # both are scheduled
    engine.cancel(gone)
    engine.forget(gone)
    engine.run()

    assert [290, 291] == list(there_is(engine.reply(stays)).generated)
    assert {} == of_kind(Vllm, engine).runner.held


def test_a_server_with_a_limit_forgets_prefixes_that_nothing_holds() -> None:
    engine = of_kind(Vllm, server("0.33.0", "dense", num_gpu_blocks_override=12))
    engine.remember(20)
    for at in range(30):
        salt = {"cache_salt": str(at)}
        engine.submit(Request(prompt=text(300, 65), predict=1, options=salt))
        engine.run()
        engine.forget(Ticket(at))

    assert len(engine.prefixes) <= 20 + 4
    assert len(engine.prefixes._numbers | engine.prefixes._earlier) < 60


def test_a_request_that_is_aborted_between_its_steps_leaves_nothing_behind() -> None:
    engine = server("0.33.0", "dense", max_num_batched_tokens=16)
    gone = engine.submit(Request(prompt=text(300, 40), predict=2))
    engine.step()
    engine.cancel(gone)
    engine.run()

    assert {} == of_kind(Vllm, engine).runner.held


def test_a_chunk_at_whose_border_the_hit_ends_needs_nothing() -> None:
    spec = preset("swa", chunked=True, window=16)
    engine = Engine.create("vllm@0.33.0", model=spec, options={"block_size": 8})
    answer(engine, text(300, 30), 1)

    replies = [answer(engine, text(300, 16 + at) + text(400 + 5 * at, 9), 1) for at in (0, 8)]

    assert [(16, "same"), (24, "same")] == [(e.cached, verdict(engine, e)) for e in replies]


FIXES = {
    "0.19.1": "+39273+43569+resumed-prefills",
    "0.24.0": "+46281+39273+43569+44243-agreed+resumed-prefills",
    "0.28.0": "+39273+43569+resumed-prefills",
    "0.30.0": "+55601+39273+43569+resumed-prefills",
    "0.31.0": "+55601+39273+43569+resumed-prefills",
    "0.32.0": "+43569",
    "0.33.0": "+43569",
}
"""Patches of each release without a wrong answer."""


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize(("release", "patches"), FIXES.items())
def test_with_every_fix_each_answer_is_the_cold_one(release: str, patches: str) -> None:
    found = {seed: wrong(Workload(seed, f"vllm@{release}{patches}")) for seed in range(30)}

    assert {} == {seed: replies for seed, replies in found.items() if replies}


# Asynchronous scheduling: a step is scheduled before the one before it has come back.
#
# The expected values are those of the releases' own `AsyncScheduler`.

FULL = {"kind": "full", "block": 4}
WINDOW = {"kind": "window", "block": 4, "window": 4}


def played(release: str, config: dict[str, Any], *group: dict[str, Any]) -> dict[str, Any]:
    """The server's content after a group of requests."""
    settings = {"max_seqs": 4, "overlaps": True, "reserve_full": False} | config
    (told,) = play({"config": settings, "steps": [group]}, FAMILY.release(release).rules)
    return told


def asked(prompt: str, generate: int, reply: str, **more: object) -> dict[str, Any]:
    return {"prompt": prompt, "generate": generate, "reply": reply} | more


@pytest.mark.parametrize(
    ("release", "queue"), [("0.33.0", "6 5 7-10 3 1 4 2"), ("0.24.0", "6 5 7-10 2-3 1 4")]
)
def test_since_028_a_window_keeps_the_blocks_that_a_step_in_flight_looks_at(
    release: str, queue: str
) -> None:
    """Three chunks of a prompt: the second block's window is free later than before."""
    config = {"groups": [FULL, WINDOW], "blocks": 11, "budget": 4}

    told = played(release, config, asked("10-18", 1, "19"))

    assert [[0, 4], [4, 8], [8, 9]] == told["requests"][0]["chunks"]
    assert queue == told["queue"]


@pytest.mark.parametrize("release", ["0.33.0", "0.24.0"])
def test_who_is_preempted_with_a_step_in_flight_keeps_the_token_that_it_says(release: str) -> None:
    """The second request's only token comes back after it gave up its blocks: it is done."""
    config = {"groups": [FULL], "blocks": 6, "budget": 64}

    told = played(release, config, asked("10-17", 2, "18-19"), asked("23-31", 1, "32"))

    assert [0, 1] == [request["preempted"] for request in told["requests"]]
    assert [[[0, 8]], [[0, 9]]] == [request["chunks"] for request in told["requests"]]
    assert "5 4 3 2 1" == told["queue"]


def test_who_is_preempted_goes_on_behind_the_token_that_came_late() -> None:
    """Three tokens of prompt and one that came late are read again, in one chunk."""
    config = {"groups": [FULL], "blocks": 5, "budget": 64, "drafts": 1}
    first = asked("10-19", 1, "20", accept=[1, 0])

    told = played("0.33.0", config, first, asked("24-26", 2, "27-28", accept=[1, 0]))

    assert [[0, 3], [0, 4]] == told["requests"][1]["chunks"]
    assert ([0, 1], "4 2 1 3") == ([r["preempted"] for r in told["requests"]], told["queue"])


def test_no_step_is_scheduled_for_who_surely_ends_with_the_one_in_flight() -> None:
    """The waiting request is looked up once more while the first one's step is in flight."""
    config = {"groups": [FULL], "blocks": 5, "budget": 64, "drafts": 1}
    group = asked("10-18", 1, "19"), asked("23-28", 1, "29")

    told = played("0.33.0", config, *group)
    alone = played("0.33.0", config | {"overlaps": False}, *group)

    assert [1, 3] == [len(request["lookups"]) for request in told["requests"]]
    assert [1, 2] == [len(request["lookups"]) for request in alone["requests"]]


def test_who_is_aborted_while_a_step_is_in_flight_frees_at_once() -> None:
    config = {"groups": [FULL], "blocks": 5, "budget": 8}

    told = played("0.33.0", config, asked("10-15", 1, "16", abort=3), asked("20-27", 1, "28"))

    assert [[1, 0, 0, 4], [3, 0, 1, 4], [4, 0, 1, 8]] == told["cache"]
    assert "2 1 4 3" == told["queue"]


# Known wrong answers are found by a search that is not told where, and made small.

SLOW: Final = ("-44409", "47491")
"""Pinned by a scenario, or a matter of a longer search: the command plays them."""

QUICK = [each for each in DEFECTS if not each.profile.endswith(SLOW)]


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", QUICK, ids=lambda each: each.profile)
def test_the_search_finds_it_in_at_most_four_requests(defect: Defect) -> None:
    # 0.24.0 also ends beside drafts, as the release does; that is not the defect in question.
    found = there_is(defect.hunt(examples=1000, only="wrong answer").counterexample)

    assert "wrong answer" == found.finding.kind
    assert len([step for step in found.scenario.step if step.do == "complete"]) <= MOST_REQUESTS


@pytest.mark.thorough
def test_with_every_fix_the_search_finds_nothing() -> None:
    report = DEFECTS[0].hunt(DEFECTS[0].cured, examples=40)

    assert report.counterexample is None
    assert report.cached_tokens > 0


def test_every_patch_that_puts_a_defect_back_is_searched_for() -> None:
    back = [patch.name for patch in FAMILY.patches if patch.name.startswith("no-")]
    searched = " ".join(defect.profile for defect in DEFECTS)

    assert [] == [name for name in back if name.removeprefix("no") not in searched]
