"""KoboldCpp's rules: fast forward, context shift, Smart Context, SmartCache; worked out by hand."""

from collections.abc import Sequence

import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.koboldcpp.server import KoboldCpp, longest_common
from cachesim.errors import OptionError
from cachesim.model.presets import tiny
from cachesim.typed import of_kind, there_is
from cachesim.units import as_tokens
from tests.engines.asking import is_cold, names
from tests.engines.llama_cpp_python.test_llama_cpp_python import called, run

NEWEST = "1.120"
OF_1_104 = "1.104"
OF_1_99 = "1.99.4"


def opened(release: str, model: str = "dense", **options: object) -> KoboldCpp:
    profile = f"koboldcpp@{release}"
    made = Engine.create(profile, model=tiny(model), arithmetic="ring", options=options)
    return of_kind(KoboldCpp, made)


def last(engine: KoboldCpp, *prompts: Sequence[int]) -> tuple[int | None, str | None, bool]:
    """Of the last of some calls: reused tokens, why they are approximate, whether it is cold."""
    *_, reply = [called(engine, *prompt) for prompt in prompts]
    return reply.cached, reply.approximated, is_cold(engine, reply)


def saved(engine: KoboldCpp) -> list[tuple[int, int]]:
    return [(event.slot, event.n_tokens) for event in engine.events if event.name() == "slot-saved"]


def acted(engine: KoboldCpp, what: str, name: str = "0") -> Reply:
    ticket = engine.slot_save(0, name) if what == "save" else engine.slot_restore(0, name)
    engine.run()
    return there_is(engine.reply(ticket))


@pytest.mark.parametrize(
    ("tokens", "cached"),
    [(run(0, 20), 19), ([*run(0, 15), 90], 15), ([*run(0, 4), 90], 4), ([*run(0, 3), 90], 0)],
)
def test_a_prefix_of_four_tokens_or_more_is_kept(tokens: list[int], cached: int) -> None:
    engine = opened(NEWEST)
    called(engine, *run(0, 20), predict=3)

    reply = called(engine, *tokens)

    assert (cached, True) == (reply.cached, is_cold(engine, reply))


@pytest.mark.parametrize("model", ["dense", "hybrid"])
def test_a_continued_chat_evaluates_the_last_sampled_token_too(model: str) -> None:
    engine = opened(NEWEST, model)
    first = called(engine, *run(0, 20), predict=3)

    reply = called(engine, *first.prompt, *first.generated, 90)

    assert (22, True) == (reply.cached, is_cold(engine, reply))


def test_nothing_is_kept_without_fast_forward() -> None:
    engine = opened(NEWEST, nofastforward=True)
    called(engine, *run(0, 20))

    reply = called(engine, *run(0, 20), 90)

    assert (0, ["prefix-not-kept"]) == (reply.cached, [loss.rule for loss in reply.losses])


def test_a_prompt_that_leaves_no_room_for_the_reply_loses_its_start() -> None:
    engine = opened(NEWEST, n_ctx=64)

    reply = called(engine, *run(0, 80), predict=10)

    assert as_tokens(run(26, 54)) == reply.prompt
    assert reply.truncated
    assert is_cold(engine, reply)


# -- shifts ------------------------------------------------------------------------------------


def chat(dropped: int, kept: int, *, start: int = 40) -> tuple[list[int], list[int]]:
    """A prompt, and one from whose middle tokens are dropped, with new ones at the end."""
    system, middle, rest = [*run(0, start)], [*run(100, dropped)], [*run(200, 200)]
    body = (rest * 4)[:kept]
    return [*system, *middle, *body], [*system, *body, *run(450, 30)]


def test_what_a_chat_dropped_is_erased_and_the_rest_moves() -> None:
    engine = opened(NEWEST, n_ctx=1024)

    assert (440, "context-shift", False) == last(engine, *chat(90, 400))
    assert [(90, 40)] == [
        (event.erased, event.position) for event in engine.events if event.name() == "tokens-erased"
    ]


@pytest.mark.parametrize(
    ("kept", "options", "cached"),
    [(150, {}, 40), (400, {"noshift": True}, 40), (400, {"nofastforward": True}, 0)],
)
def test_a_context_is_not_shifted_for_little_or_where_it_is_off(
    kept: int, options: dict[str, bool], cached: int
) -> None:
    assert (cached, None, True) == last(opened(NEWEST, n_ctx=1024, **options), *chat(90, kept))


def test_a_shifted_context_is_exact_again_up_to_where_it_was_shifted() -> None:
    engine = opened(NEWEST, n_ctx=1024)

    assert (40, None, True) == last(engine, *chat(90, 400), [*run(0, 40), 90])


def test_the_first_of_the_longest_runs_in_common_is_found() -> None:
    assert (1, 2) == longest_common(as_tokens([9, 1, 2, 5, 3, 4]), as_tokens([3, 4, 7, 1, 2]))
    assert (0, 0) == longest_common(as_tokens([1]), as_tokens([2]))


# -- Smart Context -----------------------------------------------------------------------------


SYSTEM = (*run(0, 20),)
LATER = (*run(30, 60), *run(310, 180), *run(100, 80))


def halved() -> tuple[KoboldCpp, Reply]:
    """A server whose second prompt was halved, and the reply to it."""
    engine = opened(NEWEST, noshift=True, n_ctx=512, smartcontext=True)
    called(engine, *SYSTEM, *run(100, 200), *run(300, 190))
    return engine, called(engine, *SYSTEM, *LATER, predict=5)


def test_a_full_context_is_halved_and_then_continued() -> None:
    engine, second = halved()
    assert ((*SYSTEM, *LATER[160:]), 20, True) == (second.prompt, second.cached, second.truncated)

    reply = called(engine, *SYSTEM, *LATER, 91, 92)

    assert (*SYSTEM, *LATER[160:], 91, 92) == reply.prompt
    assert (180, True, True) == (reply.cached, reply.truncated, is_cold(engine, reply))


@pytest.mark.parametrize(("sent", "error"), [(4, None), (5, "RuntimeError")])
def test_smart_context_keeps_a_token_that_was_not_evaluated(sent: int, error: str | None) -> None:
    """A reply that its length ended comes back whole, and decode fails: by source, not run."""
    engine, second = halved()

    assert error == called(engine, *SYSTEM, *LATER, *second.generated[:sent], 91).error


def test_a_failed_batch_stays_among_the_held_tokens() -> None:
    """So the same prompt fails again (#1781): read in the source of 1.99.4, not run."""
    engine = opened(OF_1_99, "hybrid")
    other = [*run(0, 20), *run(50, 5)]

    errors = [called(engine, *each).error for each in (run(0, 30), other, other, run(60, 9))]

    assert [None, "RuntimeError", "RuntimeError", None] == errors


def test_a_failed_request_sent_again_may_continue_another_chats_state() -> None:
    """A last token after all tokens in memory: by source, not run."""
    engine = opened(OF_1_99, "hybrid")
    called(engine, *run(0, 20))
    other = [*run(0, 10), *run(50, 11)]

    assert "RuntimeError" == called(engine, *other).error
    reply = called(engine, *other)

    assert (20, None, False) == (reply.cached, reply.error, is_cold(engine, reply))


def test_positions_of_several_sections_are_never_shifted() -> None:
    engine = opened(OF_1_99, "hybrid-delta", n_ctx=1024)
    last(engine, *chat(90, 400))

    assert "tokens-erased" not in names(engine)


@pytest.mark.parametrize(("profile", "error"), [(OF_1_99, "RuntimeError"), (OF_1_104, None)])
def test_a_recurrent_chat_that_continues_fails_in_1_99(profile: str, error: str | None) -> None:
    engine = opened(profile, "recurrent")
    first = called(engine, *run(0, 20), predict=3)

    assert error == called(engine, *first.prompt, *first.generated, 90).error


def test_a_single_token_again_is_answered_from_the_last_logits_in_1_99() -> None:
    engine = opened(OF_1_99)
    called(engine, 5, predict=2)

    reply = called(engine, 5)

    assert (1, False) == (reply.cached, is_cold(engine, reply))


# -- windows -----------------------------------------------------------------------------------


TEXT = tuple(i % 300 for i in range(2000))


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        # Windows have 896 cells, from position 704 on: 768 in steps of 256, and 128 more.
        ((TEXT[:1600], [*TEXT[:400], *run(400, 60)]), (0, None, True)),
        ((TEXT[:1600], [*TEXT[:708], *run(400, 60)]), (0, None, True)),
        ((TEXT[:1600], [*TEXT[:1500], *run(400, 60)]), (1500, None, True)),
        # A log of 1.117.1 has 944 tokens, 48 of them kept, and 896 evaluated (#2335).
        ((TEXT, TEXT[:944]), (48, "window-refill", False)),
    ],
)
def test_small_windows_are_refilled_where_they_begin_later(
    prompts: tuple[Sequence[int], ...], expected: tuple[int, str | None, bool]
) -> None:
    assert expected == last(opened(NEWEST, "swa", n_ctx=4096), *prompts)


def test_a_rewind_into_a_window_that_lost_tokens_is_not_noticed() -> None:
    """Trap by source, not run: only the rewind itself is compared with the first cell."""
    engine = opened(NEWEST, "swa", n_ctx=4096)
    called(engine, *TEXT[:1600])

    assert 704 == engine.context.seq_pos_min(0)
    assert (710, None, False) == last(engine, [*TEXT[:710], *run(400, 9)])


# -- SmartCache --------------------------------------------------------------------------------


def story(first: int, length: int) -> tuple[int, ...]:
    return tuple(first + i % 97 for i in range(length))


def test_a_chat_comes_back_from_its_slot() -> None:
    engine = opened(NEWEST, smartcache=2)

    assert (60, None, True) == last(engine, story(0, 60), story(100, 60), [*story(0, 60), 300])
    assert [(1, 61), (0, 61)] == saved(engine)


@pytest.mark.parametrize("profile", [NEWEST, OF_1_104])
def test_full_size_windows_are_not_compared_and_lack_what_a_loaded_chat_overwrote(
    profile: str,
) -> None:
    """The new tokens take the first cells (`head = 0`), which the window hides: by source."""
    engine = opened(profile, "swa", smartcache=2, noswa=True)
    called(engine, *story(0, 60))
    called(engine, *story(100, 60))
    assert called(engine, *story(0, 60), *story(200, 20)).cached == 60
    first = engine.context.seq_pos_min(0)

    reply = called(engine, *story(0, 10), 300)

    assert (20, 10, False) == (first, reply.cached, is_cold(engine, reply))


@pytest.mark.parametrize("profile", [NEWEST, OF_1_104, OF_1_99])
def test_full_size_windows_lack_what_was_overwritten_after_a_shift(profile: str) -> None:
    """`seq_add` lets the search for cells begin at the first one too: by source, not run."""
    engine = opened(profile, "swa", n_ctx=1024, noswa=True)
    last(engine, *chat(90, 400))
    assert engine.context.seq_pos_min(0) == 30

    assert (35, None, False) == last(engine, [*run(0, 35), 90])


@pytest.mark.parametrize(
    ("model", "options", "prompts", "saves"),
    [
        # A context that shares 70 percent is not saved,
        ("dense", {"smartcache": 1}, (story(0, 60), story(0, 42) + story(300, 18)), []),
        ("dense", {"smartcache": 1}, (story(0, 60), story(0, 41) + story(300, 19)), [(4, 61)]),
        # nor one of 32 tokens by itself.
        ("dense", {"smartcache": 1}, (story(0, 31), story(200, 9), story(0, 32), story(200, 9)),
         [(4, 33)]),
        # States are saved near the end of a prompt and at it; the newest overwrites the other one.
        ("recurrent", {}, (story(0, 400),), [(5, 369), (5, 400)]),
        # A state of a longer text gives way to one of its beginning.
        ("recurrent", {}, (story(0, 400), story(0, 380)),
         [(5, 369), (5, 400), (4, 401), (5, 349), (5, 380)]),
        # Few slots leave none for the checkpoint of a long prompt.
        ("recurrent", {"smartcache": 3}, (story(0, 2048),), [(3, 1536), (2, 2017), (3, 2048)]),
        # A checkpoint within 150 tokens of another one is not taken.
        ("recurrent", {}, (story(0, 400), story(0, 400) + story(200, 150)),
         [(5, 369), (5, 400), (4, 401), (5, 550)]),
        ("recurrent", {}, (story(0, 400), story(0, 400) + story(200, 151)),
         [(5, 369), (5, 400), (4, 401), (3, 520), (5, 551)]),
    ],
)  # fmt: skip
def test_what_is_saved_and_in_which_slot(
    model: str,
    options: dict[str, int],
    prompts: tuple[tuple[int, ...], ...],
    saves: list[tuple[int, int]],
) -> None:
    engine = opened(NEWEST, model, n_ctx=4096, **options)
    last(engine, *prompts)

    assert saves == saved(engine)


def test_a_state_near_the_end_is_what_a_changed_end_resumes_from() -> None:
    engine = opened(NEWEST, "recurrent", n_ctx=4096)
    earlier = (story(0, 400), story(200, 400), [*story(200, 390), 9, 9])

    assert (368, None, True) == last(engine, *earlier, [*story(200, 380), 8, 8])


@pytest.mark.parametrize(("length", "boats"), [(2047, []), (2048, [(6, 1344)])])
def test_a_long_prompt_has_a_checkpoint_at_65_percent(
    length: int, boats: list[tuple[int, int]]
) -> None:
    engine = opened(NEWEST, "recurrent", n_ctx=4096, n_batch=64)
    text = story(0, length)

    called(engine, *text, *called(engine, *text).generated, *story(200, 200))

    assert boats == [each for each in saved(engine) if each[0] == 6]


def test_in_1_104_a_state_is_saved_after_each_reply_and_once() -> None:
    engine = opened(OF_1_104, "recurrent", smartcache=1)
    for reply in range(6):
        engine.submit(Request(prompt=as_tokens(story(0, 60)), reply=as_tokens([100 + reply])))
        engine.run()

    assert [(slot, 61) for slot in (4, 3, 2, 1, 0, 4)] == saved(engine)


def test_slots_are_saved_and_loaded_by_request() -> None:
    engine = opened(NEWEST, "hybrid", noshift=True)
    called(engine, *run(0, 20), predict=3)
    acted(engine, "save", "2")
    called(engine, *run(50, 20))

    assert acted(engine, "load", "1").error == "RuntimeError"
    assert acted(engine, "load", "2").error is None
    assert called(engine, *run(0, 20), 90).error is None
    engine.slot_erase(0)
    engine.run()
    assert acted(engine, "load", "2").error == "RuntimeError"


def test_what_names_no_slot_is_the_first_one() -> None:
    engine = opened(NEWEST)
    called(engine, *run(0, 20))

    for name in ("7", "x", "3"):
        acted(engine, "save", name)

    assert [0, 0, 3] == [slot for slot, _ in saved(engine)]


@pytest.mark.parametrize(
    "options",
    [{"cache": "ram"}, {"swa_full": False}, {"draft_model": "prompt-lookup"}, {"embedding": True}],
)
def test_what_koboldcpp_does_not_have_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=r"koboldcpp@1\.120 has no option"):
        opened(NEWEST, **options)


@pytest.mark.parametrize("profile", [OF_1_104, OF_1_99])
def test_windows_beside_states_are_refused_before_2026(profile: str) -> None:
    """`llama-memory-hybrid-iswa.cpp` is not among the files of 1.99.4 and 1.104."""
    with pytest.raises(OptionError, match="no memory for windows beside states"):
        opened(profile, "hybrid-swa")
