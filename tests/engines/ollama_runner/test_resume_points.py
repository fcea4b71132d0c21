"""Resume points of Ollama's own runner: windows, checkpoints of a hybrid; computed by hand."""

from collections.abc import Sequence

import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.ollama_runner.rules import RunnerRules
from cachesim.engines.ollama_runner.server import Ollama, RunnerCache
from cachesim.errors import OptionError
from cachesim.model.presets import tiny
from cachesim.typed import of_kind, there_is
from cachesim.units import as_tokens
from tests.engines.asking import answer, is_cold
from tests.engines.llama_cpp_python.test_llama_cpp_python import run


def opened(patches: str = "", model: str = "dense", **options: object) -> Ollama:
    profile = f"ollama-runner@0.24{patches}"
    made = Engine.create(profile, model=tiny(model), arithmetic="ring", options=options)
    return of_kind(Ollama, made)


def called(engine: Ollama, *tokens: int, predict: int = 1) -> Reply:
    return answer(engine, tokens, predict)


def together(engine: Ollama, *prompts: Sequence[int], predict: int = 1) -> list[Reply]:
    tickets = [
        engine.submit(Request(prompt=as_tokens(prompt), predict=predict)) for prompt in prompts
    ]
    engine.run()
    engine.check_integrity()
    return [there_is(engine.reply(ticket)) for ticket in tickets]


def kept(memory: int = 0, window: int | None = None, *, hybrid: bool = False) -> RunnerCache:
    return RunnerCache(RunnerRules(window=memory), 16_384, window, hybrid=hybrid)


@pytest.mark.parametrize(
    ("patch", "tokens", "cached"),
    [
        ("", [*run(0, 20), 90], 20),
        ("", [*run(0, 19), 90], 0),
        ("+memory", [*run(0, 19), 90], 19),
    ],
)
def test_a_window_resumes_at_the_end_of_what_is_held_only(
    patch: str, tokens: list[int], cached: int
) -> None:
    engine = opened(patch, "swa")
    called(engine, *run(0, 20))

    reply = called(engine, *tokens)

    assert (reply.cached, is_cold(engine, reply)) == (cached, True)


@pytest.mark.parametrize(("predict", "continued", "cached"), [(1, 20, 20), (1, 19, 0), (9, 28, 20)])
def test_a_hybrid_resumes_from_a_checkpoint_even_where_it_continues(
    predict: int, continued: int, cached: int
) -> None:
    engine = opened("", "hybrid")
    first = called(engine, *run(0, 20), predict=predict)

    reply = called(engine, *(*first.prompt, *first.generated)[:continued], 90, predict=3)

    assert (reply.cached, is_cold(engine, reply)) == (cached, True)


def test_a_checkpoint_is_taken_within_a_reply_from_position_16_on() -> None:
    engine = opened("", "hybrid")
    first = called(engine, *run(0, 10), predict=10)

    reply = called(engine, *first.prompt, *first.generated, 90)

    assert (reply.cached, is_cold(engine, reply)) == (17, True)


def test_the_same_prompt_again_finds_no_checkpoint_before_its_last_token() -> None:
    engine = opened("", "hybrid")
    called(engine, *run(0, 20))

    assert 0 == called(engine, *run(0, 20)).cached


def test_checkpoints_are_1664_positions_apart_or_a_batch_more() -> None:
    held = kept(hybrid=True)
    for start in range(0, 6144, 512):
        held.start_forward(start, 512)

    assert [511, 2559, 4607] == [entry.pos for entry in held.entries if entry.pos >= 0]


def test_a_full_ring_overwrites_the_oldest_and_a_cut_frees_the_newest() -> None:
    held = kept(hybrid=True)
    for number in range(25):
        held.start_forward(2000 * number, 2000)
    assert min(entry.pos for entry in held.entries) == 3999

    held.remove(41_999)
    held.start_forward(41_999, 1664)

    positions = sorted(entry.pos for entry in held.entries if entry.pos >= 0)
    assert positions[:1] + positions[-2:] == [3999, 39_999, 43_662]


@pytest.mark.parametrize(("memory", "resumes"), [(0, False), (4096, True)])
def test_a_longer_memory_lets_a_rewind_keep_its_window(memory: int, *, resumes: bool) -> None:
    held = kept(memory, window=128)
    held.start_forward(0, 3000)
    held.start_forward(3000, 1)

    assert held.can_resume(1000) is resumes


def test_a_prompt_beyond_the_context_is_refused() -> None:
    assert called(opened(n_ctx=32, truncate=False), *run(0, 33)).error is not None


@pytest.mark.parametrize(
    ("prompt", "predict", "sampled", "held"), [(30, 50, 2, 32), (30, 2, 2, 31), (32, 5, 0, 32)]
)
def test_a_reply_ends_where_the_context_is_full(
    prompt: int, predict: int, sampled: int, held: int
) -> None:
    engine = opened(n_ctx=32, shift=False)

    reply = called(engine, *run(0, prompt), predict=predict)

    assert (len(reply.generated), len(engine.slots[0].inputs)) == (sampled, held)


@pytest.mark.parametrize(
    ("option", "value"), [("cache", "ram"), ("swa_full", False), ("draft_model", "prompt-lookup")]
)
def test_what_the_runner_has_not_is_refused(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=r"ollama-runner@0\.24 has no option"):
        opened("", "dense", **{option: value})


def test_states_beside_windows_and_saved_states_are_refused() -> None:
    with pytest.raises(OptionError, match="beside full attention"):
        opened("", "hybrid-swa")
    with pytest.raises(OptionError, match="no slots to save"):
        opened("").slot_save(0, "s")


def test_a_context_that_has_room_for_a_window_only_keeps_every_key() -> None:
    engine = opened("+memory", "swa")
    called(engine, *run(0, 30))

    assert engine.slots[0].cache.memory is None
