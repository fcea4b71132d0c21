"""Worked examples with a companion that drafts: what it keeps, and what its refusals cost."""

from collections.abc import Sequence

import numpy as np
import pytest

from cachesim.engines import Request
from cachesim.engines.ik_llama.companion import AttentionCompanion
from cachesim.errors import UpstreamAbort
from cachesim.units import Tokens
from tests.engines.ik_llama.worked_kit import (
    LATER,
    SEED_ERA,
    SHORT,
    A,
    G,
    H,
    Played,
    Steps,
    U,
    X,
    Z,
    run_of,
)


def speculative(server: Played, prompt: Tokens, reply: Tokens) -> tuple[int | None, int | None]:
    return server.ask(prompt, reply, Steps(reply).drafts)


def tail(server: Played) -> int:
    assert server.server.companion is not None
    return server.server.companion.tail


@pytest.mark.parametrize("patch", ["", "+1889"])
def test_a_sound_companion_changes_nothing(patch: str) -> None:
    options = {"companion": "attn", "draft_max": 3}
    going_on = Played("hybrid-mtp", SEED_ERA + patch, **options)
    speculative(going_on, A, G[:11])
    checkpoints, after = going_on.checkpoints, tail(going_on)
    again = Played("hybrid-mtp", SEED_ERA + patch, **options)
    speculative(again, A, G[:11])

    assert [994, 1009] == checkpoints
    assert 1009 == after
    assert (1010, 40) == going_on.ask(A + G[:10] + U[:40], SHORT)
    assert (995, 5) == again.ask(A, SHORT)


def test_a_load_leaves_the_companion_with_another_conversation() -> None:
    server = Played("hybrid-mtp", companion="attn", draft_max=3)
    speculative(server, A, G[:11])
    other = run_of(23_000, 400)
    second = speculative(server, other, H[:11])

    assert (0, 400) == second
    assert (1010, 40) == speculative(server, A + G[:10] + U[:40], G[30:41])
    companion = server.server.companion
    assert isinstance(companion, AttentionCompanion)
    assert 1059 == companion.tail
    assert 460 == companion.context.cells.used


B4 = run_of(23_000, 400)

STRICT: dict[str, tuple[str, Sequence[Tokens], tuple[int, int], tuple[int, int]]] = {
    "W1 hybrid": ("hybrid-mtp", [A, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
    "W1 dense": ("dense", [A, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
    "W2": ("hybrid-mtp", [A, A], (0, 1000), (995, 5)),
    "W3": ("dense", [A, A], (0, 1000), (999, 1)),
    "W4": ("dense", [A, A, A[:600] + Z[:300]], (0, 900), (600, 300)),
    "W5": ("hybrid-mtp", [A, A, A[:600] + Z[:300]], (0, 900), (0, 900)),
    "W7 hybrid": ("hybrid-mtp", [B4, A, B4 + H[:10] + U[:40]], (0, 450), (410, 40)),
    "W7 dense": ("dense", [B4, A, B4 + H[:10] + U[:40]], (0, 450), (410, 40)),
    "W8 hybrid": ("hybrid-mtp", [A, B4, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
    "W8 dense": ("dense", [A, B4, A + G[:10] + U[:40]], (1010, 40), (1010, 40)),
}


@pytest.mark.parametrize("patched", [False, True], ids=["before", "with 1889"])
@pytest.mark.parametrize("row", STRICT)
def test_w_rows_of_a_companion_that_refuses(row: str, patched: bool) -> None:
    model, prompts, before, after = STRICT[row]
    server = Played(
        model, SEED_ERA + ("+1889" if patched else ""), companion="strict_tail", draft_max=3
    )
    answer: tuple[int | None, int | None] = (None, None)
    for prompt in prompts:
        answer = speculative(server, prompt, H[:11] if prompt[0] == B4[0] else G[:11])

    assert (after if patched else before) == answer


@pytest.mark.parametrize(("patch", "answer"), [("", (0, 3500)), ("+1889", (2048, 1452))])
def test_a_refused_rewind_loses_the_checkpoints_too(patch: str, answer: tuple[int, int]) -> None:
    server = Played(
        "hybrid-mtp", SEED_ERA + patch, companion="strict_tail", draft_max=3, ctx_size=16384
    )
    speculative(server, X, G[:11])

    assert answer == speculative(server, X[:3000] + Z, G[:11])


@pytest.mark.parametrize("patch", ["", "+1889"])
def test_a_primary_that_refuses_is_reset_with_the_patch_too(patch: str) -> None:
    server = Played("recurrent", SEED_ERA + patch, cache_ram=0, ctx_checkpoints=0)
    server.ask(A, G[:1])

    assert (0, 1000) == server.ask(A, SHORT)


@pytest.mark.parametrize(("patch", "answer"), [("", (0, 2600)), ("+1889", (2048, 552))])
def test_the_later_release_reaches_a_refusing_companion(
    patch: str, answer: tuple[int, int]
) -> None:
    server = Played("hybrid-mtp", LATER + patch, companion="window", draft_max=3, ctx_size=16384)
    server.ask(X[:3000], G[:1])

    assert answer == server.ask(X[:2500] + Z[:100], SHORT)


def test_a_cancelled_prompt_keeps_whole_ubatches_and_leaves_the_companion_a_hole() -> None:
    prompt = X[:3000]
    server = Played("hybrid-mtp", companion="attn", draft_max=3)
    gone = server.server.submit(Request(prompt=prompt, options={"cancel_after_ubatches": 3}))
    server.server.run()
    refused = server.server.reply(gone)

    assert refused is not None
    assert "cancelled" == refused.error
    assert -1 == tail(server)
    assert (1536, 1464) == server.ask(prompt, SHORT[:1])
    companion = server.server.companion
    assert isinstance(companion, AttentionCompanion)
    assert 1464 == companion.context.cells.used


@pytest.mark.parametrize("mode", ["cpu", "per-step"])
def test_a_draft_longer_than_the_batch_ends_the_server_where_it_is_right(mode: str) -> None:
    """Its rows lie in a part of the batch that is not decoded yet: there are no logits to read."""
    options = {"companion": "attn", "draft_max": 3, "batch_size": 2, "recurrent_ckpt_mode": mode}
    prompt, reply = A[:20], G[:8]
    right, wrong = Steps(reply).drafts, tuple(H[i : i + 3] for i in range(0, 24, 3))

    with pytest.raises(UpstreamAbort, match="invalid logits id 2"):
        Played("hybrid-mtp", **options).ask(prompt, reply, right)
    assert (0, 20) == Played("hybrid-mtp", **options).ask(prompt, reply, wrong)


@pytest.mark.parametrize("release", [SEED_ERA, LATER])
@pytest.mark.parametrize(("ubatch", "right"), [(4, True), (3, True), (2, False), (1, False)])
def test_a_draft_cut_into_ubatches_brings_another_tokens_state_back(
    release: str, ubatch: int, right: bool
) -> None:
    """Each ubatch of several tokens writes its states from the first place on."""
    options = {"companion": "attn", "draft_max": 3, "ubatch_size": ubatch}
    prompt, reply = A[:20], G[:8]
    drafts = tuple(H[i : i + 3] for i in range(0, 24, 3))

    piecewise = Played("hybrid-mtp", release, **options).full(prompt, reply, drafts)
    options["recurrent_ckpt_mode"] = "cpu"
    again = Played("hybrid-mtp", release, **options).full(prompt, reply, drafts)
    alone = Played("hybrid-mtp", release, ubatch_size=ubatch).full(prompt, reply)

    assert np.array_equal(alone.logits, again.logits)
    assert right == np.array_equal(alone.logits, piecewise.logits)
