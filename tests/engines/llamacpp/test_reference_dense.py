"""Worked examples on full attention, with the counts that follow from the source."""

import pytest

from tests.engines.llamacpp.play import Play, run

OLD, NEW = "llama.cpp@b9538", "llama.cpp@b11549"
both = pytest.mark.parametrize("profile", [OLD, NEW])
every = pytest.mark.parametrize("profile", ["llama.cpp@b9093", OLD, NEW])


@every
def test_a_prompt_again_extended_and_branched(profile: str) -> None:
    play = Play(profile)
    assert play.ask(run(range(100)), 8) == (0, 100)
    assert play.tokens() == 107
    assert play.ask(run(range(100)), 8) == (99, 1)
    assert play.tokens() == 107
    assert play.ask(run(range(100), play.G, range(200, 210)), 8) == (107, 10)
    assert play.tokens() == 124
    assert play.ask(run(range(50), range(600, 650))) == (50, 50)
    assert play.ram == [(124, 0)]


@every
def test_the_last_token_is_read_again(profile: str) -> None:
    play = Play(profile)
    assert play.ask(run(range(100))) == (0, 100)
    assert play.tokens() == 100
    assert play.last is not None
    generated = list(play.last.generated)
    assert play.ask(run(range(100), generated)) == (100, 1)
    assert play.ask(run(range(100)), 0) == (99, 1)
    assert len(play.last.generated) == 1


@every
def test_a_load_consumes_the_entry_and_the_cut_destroys_the_rest(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(1000)))
    assert play.ask(run(range(5000, 5100))) == (0, 100)
    assert play.ram == [(1000, 0)]
    assert play.ask(run(range(300))) == (299, 1)
    assert play.ram == [(100, 0)]
    assert play.ask(run(range(1000))) == (300, 700)


@pytest.mark.parametrize(
    ("profile", "fourth", "ram"),
    [
        (OLD, (100, 100), [200, 200]),
        (OLD + "+24143", (199, 1), [200, 200, 200]),
        (NEW, (100, 100), [200, 200]),
        (NEW + "+24143", (199, 1), [200, 200, 200]),
    ],
)
def test_a_load_consumes_the_entry_unless_24143_keeps_it(
    profile: str, fourth: tuple[int, int], ram: list[int]
) -> None:
    play = Play(profile, slot_prompt_similarity=0.0)
    play.ask(run(range(200)))
    play.ask(run(range(1000, 1200)))
    assert play.ask(run(range(100), range(2000, 2100))) == (100, 100)
    assert play.ask(run(range(200))) == fourth
    assert [tokens for tokens, _ in play.ram] == ram
    assert play.ask(run(range(1000, 1200))) == (199, 1)


@both
def test_with_a_threshold_the_lookup_is_skipped_even_with_24143(profile: str) -> None:
    play = Play(profile + "+24143", slot_prompt_similarity=0.1)
    play.ask(run(range(200)))
    play.ask(run(range(1000, 1200)))
    play.ask(run(range(100), range(2000, 2100)))
    assert play.ask(run(range(200))) == (100, 100)


@both
def test_a_short_match_in_the_slot_hides_the_perfect_entry(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(1000)))
    play.ask(run(range(5000, 5100)))
    assert play.ask(run(range(240), 7000)) == (0, 241)
    assert play.ram == [(1000, 0), (100, 0)]
    assert play.ask(run(range(1000))) == (240, 760)


@both
def test_an_older_entry_blocks_a_better_younger_one(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(100), range(5000, 5005)))
    assert play.ask(run(range(900), range(6000, 6200))) == (100, 1000)
    assert play.ram == [(105, 0)]
    play.ask(run(range(8000, 8100)))
    assert play.ram == [(105, 0), (1100, 0)]
    assert play.ask(run(range(1000))) == (100, 900)


@both
def test_an_entry_below_a_quarter_is_not_loaded(profile: str) -> None:
    play = Play(profile, slot_prompt_similarity=0.0)
    play.ask(run(range(1000)))
    play.ask(run(range(8000, 8100)))
    assert play.ask(run(range(249))) == (0, 249)
    assert play.ask(run(range(250))) == (249, 1)


@both
def test_similarity_on_the_bound_is_not_enough(profile: str) -> None:
    play = Play(profile, parallel=2, cache_idle_slots=False)
    play.ask(run(range(100)))
    assert play.slot == 1
    assert play.ask(run(range(10), range(2000, 2090))) == (0, 100)
    assert play.slot == 0
    assert play.ask(run(range(11), range(3000, 3089))) == (11, 89)
    assert play.slot == 1


@pytest.mark.parametrize(("profile", "fourth"), [(OLD, (899, 1)), (NEW, (0, 900))])
def test_making_room_drops_the_entry_that_is_needed(profile: str, fourth: tuple[int, int]) -> None:
    play = Play(profile, cache_ram=1)
    for start in (0, 1000, 2000):
        assert play.ask(run(range(start, start + 900))) == (0, 900)
    assert play.ask(run(range(900))) == fourth


@every
def test_the_tail_of_a_mostly_kept_prompt_is_lost(profile: str) -> None:
    play = Play(profile)
    play.ask(run(range(1000)))
    assert play.ask(run(range(600))) == (599, 1)
    assert play.tokens() == 600
    assert play.ask(run(range(1000))) == (600, 400)


@both
def test_without_a_byte_limit_the_context_limits_the_cache(profile: str) -> None:
    play = Play(profile, ctx_size=256, cache_ram=-1)
    for start in (0, 1000, 2000, 0):
        assert play.ask(run(range(start, start + 200))) == (0, 200)
        assert play.ram in ([], [(200, 0)])


@every
def test_chunk_reuse_recognises_deletions_only(profile: str) -> None:
    play = Play(profile, cache_reuse=16)
    play.ask(run(range(100)))
    assert play.ask(run(range(30), range(50, 100), range(300, 305))) == (80, 5)
    play = Play(profile, cache_reuse=16)
    play.ask(run(range(100)))
    play.ask(run(range(30), range(50, 100), range(300, 305)))
    assert play.ask(run(range(30), range(400, 402), range(60, 100))) == (30, 42)


@both
def test_four_automatic_slots(profile: str) -> None:
    play = Play(profile, parallel=-1)
    assert play.ask(run(range(100)), 4) == (0, 100)
    first = play.G
    assert play.slot == 3
    assert play.ask(run(range(1000, 1100)), 4) == (0, 100)
    second = play.G
    assert play.slot == 2
    assert (play.tokens(3), play.ram) == (0, [(103, 0)])
    assert play.ask(run(range(100), range(300, 310)), 4) == (100, 10)
    assert (play.slot, play.ram) == (1, [(103, 0)])
    assert play.ask(run(range(1000, 1100), range(400, 410)), 4) == (100, 10)
    assert (play.slot, play.ram) == (0, [(113, 0)])
    assert len(first) == len(second) == 3


@pytest.mark.parametrize(
    ("profile", "after_second", "after_third"),
    [(OLD, [], []), (NEW, [(103, 0)], [(103, 0), (103, 0)])],
)
def test_split_slots_and_idle_copies(
    profile: str, after_second: list[tuple[int, int]], after_third: list[tuple[int, int]]
) -> None:
    play = Play(profile, parallel=2)
    play.ask(run(range(100)), 4)
    assert play.slot == 1
    play.ask(run(range(1000, 1100)), 4)
    assert (play.slot, play.ram) == (0, after_second)
    assert play.ask(run(range(100)), 4) == (99, 1)
    assert (play.slot, play.ram) == (1, after_third)


@pytest.mark.parametrize(
    ("profile", "ram", "fourth"), [(OLD, [], (0, 100)), (NEW, [(100, 0)], (99, 1))]
)
def test_a_pinned_slot_and_the_prompt_cache(
    profile: str, ram: list[tuple[int, int]], fourth: tuple[int, int]
) -> None:
    play = Play(profile, parallel=2, cache_idle_slots=False)
    play.ask(run(range(100)), slot=0)
    play.ask(run(range(1000, 1100)), slot=0)
    assert play.ram == ram
    assert play.ask(run(range(100)), slot=1) == (0, 100)
    assert play.ask(run(range(100)), slot=0) == fourth


@both
def test_the_context_limit_ends_generation_and_refuses_prompts(profile: str) -> None:
    play = Play(profile, ctx_size=256)
    assert play.ask(run(range(8)), -1) == (0, 8)
    assert play.last is not None
    assert (len(play.last.generated), play.last.truncated, play.tokens()) == (248, True, 255)
    reply = play.reply(run(range(1000, 1256)))
    assert (reply.error, reply.cached, reply.processed) == ("exceed_context_size_error", None, None)
    assert (play.ram, play.tokens()) == ([(255, 0)], 255)
    assert play.ask(run(range(8))) == (7, 1)


@both
def test_a_full_unified_cache_purges_an_idle_slot(profile: str) -> None:
    play = Play(
        profile, parallel=2, kv_unified=True, ctx_size=512, cache_idle_slots=False,
        slot_prompt_similarity=0.0,
    )  # fmt: skip
    play.ask(run(range(300)), 4)
    assert play.slot == 1
    assert play.ask(run(range(1000, 1300)), 4) == (0, 300)
    assert (play.slot, play.tokens(1)) == (0, 0)
    assert play.ask(run(range(300)), 4) == (0, 300)
    assert (play.slot, play.tokens(0)) == (1, 0)
    assert play.ask(run(range(1000, 1401)), 4) == (0, 401)
    assert play.slot == 0
