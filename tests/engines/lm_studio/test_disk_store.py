"""The prompt cache of mlx-engine since July 2026: one entry in memory, and records on disk."""

from dataclasses import replace
from itertools import pairwise

import pytest

from cachesim.engines.base import Engine
from cachesim.engines.lm_studio.batch_generator import next_prompt_step_size
from cachesim.engines.lm_studio.prompt_cache import DiskPromptCache, RecordStore
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.errors import OptionError
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.typed import of_kind
from cachesim.units import as_tokens
from tests.engines.asking import answer

PROMPT = [number * 7 % 90 + 100 for number in range(700)]
REPLY = [200, 201, 202]
OTHER = [9] * 20


def server(model: str | ModelSpec, patch: str = "mlx-engine-disk") -> MlxLm:
    spec = preset(model) if isinstance(model, str) else model
    return of_kind(MlxLm, Engine.create(f"mlx-lm@0.31.3+{patch}", model=spec, arithmetic="ring"))


def cached(engine: MlxLm, *prompts: list[int], reply: list[int] = REPLY) -> list[int]:
    """Cached tokens of requests, one after the other."""
    replies = [answer(engine, prompt, reply=as_tokens(reply)) for prompt in prompts]
    return [each.cached or 0 for each in replies]


def stored(engine: MlxLm) -> RecordStore:
    return of_kind(DiskPromptCache, engine.server.store.cache).store("")


def records(engine: MlxLm) -> list[tuple[int, str]]:
    """Ends and kinds of the records, the next one to evict first."""
    return [(record.chunk.end, record.kind) for record in stored(engine).records.values()]


def test_the_entry_in_memory_is_cut_where_all_layers_can_be() -> None:
    assert [0, 699, 650] == cached(server("dense"), PROMPT, PROMPT, [*PROMPT[:650], 5])


def test_any_request_drops_it_and_chunks_are_left() -> None:
    engine = server("dense")

    assert [0, 0, 512] == cached(engine, PROMPT, OTHER, PROMPT)
    assert [(512, "kv_delta"), (256, "kv_delta")] == records(engine)


def test_the_last_token_of_a_prompt_is_never_read_from_disk() -> None:
    assert [0, 0, 256] == cached(server("dense"), PROMPT[:512], OTHER, PROMPT[:512])


def test_the_longer_match_is_used() -> None:
    assert [0, 300, 512] == cached(server("dense"), PROMPT, [*PROMPT[:300], *OTHER], PROMPT)


def test_a_window_needs_no_record_that_it_does_not_reach() -> None:
    engine = server(replace(preset("swa"), window=128))
    cached(engine, PROMPT, OTHER)
    store = stored(engine)
    first, last = store.chunks(PROMPT)
    store.total_bytes -= store.records.pop((first.key, "rotating_delta")).nbytes

    assert [512] == cached(engine, PROMPT)
    store.total_bytes -= store.records.pop((last.key, "rotating_delta")).nbytes
    assert [0, 0] == cached(engine, OTHER, PROMPT)


def test_a_state_is_kept_at_the_last_chunk_before_the_end_of_a_prompt() -> None:
    engine = server("hybrid-delta")

    assert [0, 512] == cached(engine, PROMPT, PROMPT)
    assert [(512, "kv_delta"), (512, "state_checkpoint"), (256, "kv_delta")] == records(engine)
    assert [0] == cached(engine, [*PROMPT[:400], 5])


def test_a_state_is_kept_every_256_tokens_of_a_reply() -> None:
    engine = server("hybrid-delta")
    long = [number % 50 + 30 for number in range(300)]

    assert [0, 768] == cached(engine, PROMPT, [*PROMPT, *long[:100]], reply=long)


@pytest.mark.parametrize(("window", "reused"), [(128, 512), (300, 1280)])
def test_a_chunk_that_a_window_has_lost_leaves_a_gap_and_a_wider_one_none(
    window: int, reused: int
) -> None:
    engine = server(replace(preset("swa"), window=window))
    long = [number % 50 + 30 for number in range(100)]
    longer = [*PROMPT, *long, *PROMPT]

    assert [0, 800, 0, reused] == cached(engine, PROMPT, longer, OTHER, longer, reply=long)


def test_a_stop_string_drops_the_entry_in_memory() -> None:
    engine = server("dense")
    answer(engine, PROMPT, reply=as_tokens([*REPLY, 125]), options={"stop_words": ["z"]})

    assert [512] == cached(engine, PROMPT)


def test_the_records_have_room_for_one_context() -> None:
    engine = server("dense", "mlx-engine-disk-4096")
    prompts = [[first, *PROMPT * 4] for first in (1, 2)]

    assert [0, 0, 1536] == cached(engine, *prompts, [*prompts[0], 5])
    assert 16 == len(records(engine))


def test_without_a_batch_form_of_its_caches_a_model_is_refused() -> None:
    with pytest.raises(OptionError, match=r"by its other kit: name the patch \+one-request"):
        server(replace(preset("swa"), layers=("window",) * 3 + ("attention",), chunked=True))


def test_a_list_of_caches_ends_the_generation_thread() -> None:
    engine = server(replace(preset("hybrid"), family="falcon_h1"))

    assert "worker died: AttributeError" == answer(engine, OTHER, reply=as_tokens(REPLY)).error


@pytest.mark.parametrize(
    ("cached_tokens", "states", "ends"),
    [
        (0, False, [2048, 4096]),
        (0, True, [2048, 4096, 4864]),
        (100, True, [2048, 4096, 4864]),
        (4097, False, []),
        (4864, True, []),
    ],
)
def test_calls_end_at_steps_and_at_a_chunk_where_a_layer_has_states(
    cached_tokens: int, states: bool, ends: list[int]
) -> None:
    found = [cached_tokens]
    while count := next_prompt_step_size(found[-1], 5000 - found[-1], 2048, 256, has_states=states):
        found.append(found[-1] + count)

    assert ends == found[1:]
    assert all(one < two for one, two in pairwise(found))
