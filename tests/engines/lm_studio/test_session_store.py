"""The prompt caches of mlx-engine: a state before a prompt's end, or after the reply alone."""

import pytest

from cachesim.engines.mlx_lm.server.engine import MlxLm
from tests.engines.lm_studio.test_disk_store import REPLY, cached
from tests.engines.lm_studio.test_disk_store import server as opened

PROMPT = list(range(100, 140))
OTHER = [*PROMPT, 300, 301]


def server(model: str, patch: str = "mlx-engine") -> MlxLm:
    return opened(model, patch)


def kept(engine: MlxLm) -> list[tuple[int, str]]:
    """Lengths and types of the entries."""
    entries = engine.server.store.cache.trie.items()
    return sorted((len(key), each.cache_type) for _, key, each in entries)


def test_a_state_is_kept_before_the_end_of_a_prompt_and_after_the_reply() -> None:
    engine = server("hybrid-delta")

    assert [0, 29, 29] == cached(engine, PROMPT, PROMPT, OTHER)
    assert [(29, "user"), (31, "user"), (43, "assistant"), (45, "assistant")] == kept(engine)


def test_a_prompt_that_ends_where_a_state_does_goes_on_from_an_earlier_one() -> None:
    engine = server("hybrid-delta")

    assert [0, 29, 43] == cached(engine, PROMPT, PROMPT + REPLY, [*PROMPT, *REPLY, 9])


@pytest.mark.parametrize("patch", ["mlx-engine", "mlx-engine-batched"])
def test_a_prompt_that_is_stored_is_cut_by_its_last_token_where_it_can_be(patch: str) -> None:
    assert [0, 42] == cached(server("dense", patch), PROMPT, PROMPT + REPLY)


def test_the_other_kit_feeds_such_a_prompt_again_and_keeps_no_state_before_the_end() -> None:
    engine = server("hybrid-delta", "mlx-engine-batched")

    assert [0, 0, 0] == cached(engine, PROMPT, PROMPT + REPLY, OTHER)
    assert [(43, "assistant"), (45, "assistant"), (46, "assistant")] == kept(engine)


def test_without_a_layer_that_counts_its_tokens_nothing_is_kept() -> None:
    longer = [*PROMPT, *REPLY, 9]

    assert [0, 0] == cached(server("recurrent"), PROMPT, longer)
    assert [0, 43] == cached(server("recurrent", "mlx-engine-batched"), PROMPT, longer)


def test_the_eleventh_entry_evicts_one() -> None:
    engine = server("hybrid-delta")
    prompts = [[number, *PROMPT[:5]] for number in range(300, 311)]

    assert [0] * 11 == cached(engine, *prompts)
    assert [0, 9] == cached(engine, [*prompts[0], *REPLY, 9], [*prompts[2], *REPLY, 9])
