"""What shares the slots with completions: embeddings, documents, gaps; and what ends all."""

from contextlib import nullcontext
from typing import Any

import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.memory.sizes import row_bytes
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.errors import OptionError, TokenError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.scenario.session import SlotFiles
from cachesim.units import Tokens, as_tokens

T = as_tokens(range(300, 340))
EMBED = {"endpoint": "embedding"}


def server(release: str = "b11549", model: str = "dense", **options: Any) -> LlamaCpp:
    engine = Engine.create(
        f"llama.cpp@{release}",
        model=preset(model),
        options=options,
        arithmetic="ring",
        store=SlotFiles(),
    )
    assert isinstance(engine, LlamaCpp)
    return engine


def ask(engine: LlamaCpp, prompt: Tokens, predict: int = 1, **options: Any) -> Reply:
    ticket = engine.submit(Request(prompt=prompt, predict=predict, options=options or None))
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply


@pytest.mark.parametrize(
    ("release", "model", "cached"),
    [
        ("b11549", "dense", [0, 40, 20, 30]),
        ("b11549", "hybrid", [0, 40, 20, 26]),
        ("b11549", "swa", [0, 40, 0, 25]),
        ("b9538", "dense", [0, 40, 20, 30]),
        ("b9538", "hybrid", [0, 40, 20, 20]),
        ("b9538", "swa", [0, 40, 20, 0]),
        ("b9093", "dense", [0, 40, 20, 30]),
        ("b9093", "hybrid", [0, 40, 20, 0]),
        ("b9093", "swa", [0, 40, 20, 0]),
    ],
)
def test_an_embedded_prompt_leaves_what_a_completion_reuses_as_on_the_wheels(
    release: str, model: str, cached: list[int]
) -> None:
    engine = server(release, model, embedding=True)

    first = ask(engine, T, 2)
    ask(engine, T, **EMBED)
    longer = ask(engine, (*T, T[0]), 2)
    ask(engine, T[:20], **EMBED)
    rest = [ask(engine, T[:30], 2), ask(engine, T, 2)]

    assert cached == [each.cached for each in (first, longer, *rest)]


def test_documents_are_read_behind_what_is_asked_of_them() -> None:
    engine = server(embedding=True, pooling="rank")

    ask(engine, T, 2)
    for document in (T[5:10], T[10:20]):
        ask(engine, T[:5] + document, endpoint="rerank")

    assert [5, 9] == [ask(engine, prompt, 2).cached for prompt in (T, T[:10])]


def test_only_the_last_embedding_may_come_in_pieces_and_reuses_something_until_october() -> None:
    whole, september, october = (
        server(release, embedding=True, pooling=pooling, ubatch_size=32)
        for release, pooling in (("b11549", "mean"), ("b11063", "last"), ("b11549", "last"))
    )

    assert ["server_error"] * 2 == [ask(whole, T, **EMBED).error for _ in range(2)]
    assert [0, 39] == [ask(september, T, **EMBED).cached for _ in range(2)]
    assert [0, 0] == [ask(october, T, **EMBED).cached for _ in range(2)]


def test_a_prompt_to_be_ranked_comes_in_pieces_since_october() -> None:
    errors = [
        ask(
            server(each, embedding=True, pooling="rank", ubatch_size=32), T, endpoint="rerank"
        ).error
        for each in ("b11063", "b11549")
    ]

    assert ["server_error", None] == errors


def test_an_embedding_in_one_piece_leaves_the_checkpoints_of_what_its_slot_held() -> None:
    engines = [server(model="hybrid", embedding=True, pooling=each) for each in ("mean", "last")]
    for engine in engines:
        ask(engine, T)
        ask(engine, T[:30], **EMBED)

    assert [1, 0] == [len(each.server.slots[0].prompt.checkpoints) for each in engines]


def test_what_a_server_was_not_started_for_or_cannot_take_at_once_is_refused() -> None:
    narrow = server(embedding=True, ubatch_size=32)

    assert "not_supported_error" == ask(server(), T, **EMBED).error
    assert "not_supported_error" == ask(narrow, T, endpoint="rerank").error
    assert "server_error" == ask(narrow, T, **EMBED).error


def test_a_gap_to_fill_is_not_looked_up_in_the_prompt_cache() -> None:
    other = as_tokens(range(400, 430))
    for endpoint, cached in (("completion", 39), ("infill", 0)):
        engine = server()
        first, _, again = (
            ask(engine, each, endpoint=how).cached
            for each, how in ((T, endpoint), (other, "completion"), (T, endpoint))
        )
        assert (0, cached) == (first, again)


def test_a_gap_to_fill_leaves_no_checkpoint() -> None:
    engine = server(model="hybrid")

    assert [0, 0] == [ask(engine, T, endpoint="infill").cached for _ in range(2)]


@pytest.mark.parametrize(
    ("flags", "prefix", "suffix"),  # what June's and October's wheels keep of 160 and 70 tokens
    [
        ({"batch_size": 64}, 48, 14),
        ({"batch_size": 70, "ubatch_size": 32}, 51, 15),
        ({"batch_size": 2048, "ctx_size": 256}, 160, 70),
        ({"batch_size": 64, "ubatch_size": 32, "embedding": True}, 24, 6),
        ({"batch_size": 10}, 6, 0),
    ],
)
def test_a_gap_keeps_three_quarters_of_a_batch_before_it_and_one_behind(
    flags: dict[str, Any], prefix: int, suffix: int
) -> None:
    before, behind = as_tokens(range(265, 425)), as_tokens(range(430, 500))

    prompt = ask(server(**flags), before, endpoint="infill", input_suffix=behind).prompt

    assert (4, *before[160 - prefix :], 5, *behind[:suffix], 6) == prompt


def test_a_suffix_that_is_no_list_of_tokens_is_refused() -> None:
    with pytest.raises(OptionError, match="input_suffix' is 'x'; write a list of token ids"):
        ask(server(), T, endpoint="infill", input_suffix="x")
    with pytest.raises(TokenError, match="input_suffix holds token 512"):
        ask(server(), T, endpoint="infill", input_suffix=[512])


def test_a_restart_leaves_the_slot_files_and_nothing_else() -> None:
    engine = server()
    ask(engine, T)
    engine.slot_save(0, "kept")
    engine.run()

    engine.restart()
    assert [0, 39] == [ask(engine, T).cached for _ in range(2)]

    engine.restart()
    engine.slot_restore(0, "kept")
    engine.run()
    assert 39 == ask(engine, T).cached
    assert 2 == [each.name() for each in engine.events].count("server-restarted")


def test_a_server_sleeps_where_it_was_told_to() -> None:
    engine = server(sleep_idle_seconds=2)
    ask(engine, T)

    engine.sleep()

    assert 0 == ask(engine, T).cached
    with pytest.raises(OptionError, match="sleep_idle_seconds"):
        server().sleep()


def test_a_number_below_minus_one_is_one_token_in_june_and_refused_since() -> None:
    june, october = (ask(server(each), T, n_predict=-2) for each in ("b9538", "b11549"))

    assert (1, None) == (len(june.generated), june.error)
    assert "invalid_request_error" == october.error


def test_a_request_that_says_cache_prompt_is_heard_before_the_flag() -> None:
    engine = server(cache_prompt=False)

    said = [ask(engine, T).cached, ask(engine, T, cache_prompt=True).cached, ask(engine, T).cached]

    assert [0, 39, 0] == said


def test_types_of_the_cache_decide_bytes_alone() -> None:
    narrow, wide = preset("dense"), preset("dense", head_size=32)
    f16 = row_bytes(wide, 0)

    assert 2 * f16.key == row_bytes(wide, 0, "f32", "f16").key
    assert (f16.key // 2) // 32 * 34 == row_bytes(wide, 0, "q8_0", "q8_0").value
    with pytest.raises(OptionError, match="blocks of 32, and a head has 16"):
        row_bytes(narrow, 0, "q8_0")
    assert 0 == ask(server(cache_type_k="f32", cache_type_v="bf16"), T).cached


def test_no_context_is_the_one_that_the_model_was_trained_with() -> None:
    assert 65_536 == server(ctx_size=0).server.slots[0].n_ctx


def test_n_grams_are_let_through_and_draft_nothing_here() -> None:
    engine = server(spec_type="ngram-mod")

    assert (0, 40) == (ask(engine, T).cached, ask(engine, T + T[:1]).cached)


@pytest.mark.parametrize(
    ("spec_type", "release", "n_discard", "ends"),
    [
        ("ngram-map-k", "b9294", 0, True),
        ("ngram-map-k4v", "b9538", 0, True),
        ("ngram-map-k", "b11549", 0, True),
        ("ngram-map-k", "b11549", 2, False),
        ("ngram-map-k", "b11549", 3, True),
        ("ngram-map-k", "b11549", 240, True),
        ("ngram-mod", "b11549", 0, False),
        ("ngram-simple", "b11549", 0, False),
        ("ngram-cache", "b11549", 0, False),
    ],
)
def test_a_context_shift_under_a_map_of_n_grams_ends_the_process(
    *, spec_type: str, release: str, n_discard: int, ends: bool
) -> None:
    """Seen on the wheels: the map has looked at 253 tokens, and the shift left 128."""
    engine = server(release, spec_type=spec_type, context_shift=True, ctx_size=256)
    prompt = as_tokens([265 + (7 * n) % 240 for n in range(100)])
    options = {"n_discard": n_discard}
    engine.submit(Request(prompt=prompt, predict=300, options=options))

    with pytest.raises(UpstreamAbort, match="n-gram map") if ends else nullcontext():
        engine.run()


@pytest.mark.parametrize(("prompt", "last"), [(250, 7), (251, 6), (252, 5), (253, 4), (254, 3)])
def test_the_map_of_n_grams_looks_once_more_only_while_two_tokens_are_to_come(
    prompt: int, last: int
) -> None:
    """On the wheel, one token more ends the process."""
    for predict in (last, last + 1):
        engine = server(spec_type="ngram-map-k", context_shift=True, ctx_size=256)
        tokens = as_tokens([265 + (7 * n) % 240 for n in range(prompt)])
        engine.submit(Request(prompt=tokens, predict=predict))
        with pytest.raises(UpstreamAbort) if predict > last else nullcontext():
            engine.run()


@pytest.mark.parametrize(("embedding", "cached"), [(False, 25), (True, 29)])
def test_a_server_that_embeds_reads_an_ubatch_at_a_time(*, embedding: bool, cached: int) -> None:
    """Seen on the wheels of all releases: 541 tokens leave a checkpoint at 541 - 512."""
    engine = server("b9538", "hybrid", embedding=embedding, checkpoint_min_step=16)
    prompt = as_tokens([265 + (7 * n) % 240 for n in range(541)])

    ask(engine, prompt)

    assert cached == ask(engine, prompt[:300] + T).cached


@pytest.mark.parametrize("release", ["b9093", "b9538", "b11549"])
def test_keys_kept_as_bf16_end_the_process_where_a_chunk_is_moved(release: str) -> None:
    """As the real b8672, b9093, b9538, b10229 and b11549 do."""
    prompt = as_tokens(range(300, 400))
    for kept, ends in (("f32", False), ("bf16", True)):
        engine = server(release, cache_type_k=kept, cache_reuse=8)
        ask(engine, prompt)
        if ends:
            with pytest.raises(UpstreamAbort, match="bf16"):
                ask(engine, prompt[:10] + prompt[20:])
        else:
            assert 89 == ask(engine, prompt[:10] + prompt[20:]).cached


@pytest.mark.parametrize(
    ("flags", "since"),  # the wheels' first release that ends as it starts
    [
        ({"parallel": 3, "ubatch_size": 512, "pooling": "mean"}, "b9538"),
        ({"parallel": 6, "ubatch_size": 512, "pooling": "mean"}, "b9538"),
        ({"parallel": 4, "ubatch_size": 510, "pooling": "mean"}, "b9538"),
        ({"parallel": 3, "ctx_size": 256, "pooling": "mean"}, "b9538"),
        ({"parallel": 3, "ubatch_size": 99, "batch_size": 64, "pooling": "mean"}, "b9538"),
        ({"parallel": 4, "ubatch_size": 2, "pooling": "last"}, "b9538"),
        ({"parallel": 4, "batch_size": 3, "embedding": False}, "b9538"),
        ({"parallel": 3, "ubatch_size": 510, "pooling": "mean"}, ""),
        ({"parallel": 3, "ubatch_size": 512, "pooling": "mean", "embedding": False}, ""),
        ({"parallel": 3, "ubatch_size": 512, "pooling": "cls"}, ""),
        ({"parallel": 4, "ubatch_size": 2, "embedding": False}, ""),
    ],
)
def test_a_graph_that_cannot_be_reserved_ends_the_server_at_start_as_on_the_wheels(
    flags: dict[str, Any], since: str
) -> None:
    names = FAMILY.real()
    for release in names:
        ends = bool(since) and names.index(release) >= names.index(since)
        expected = pytest.raises(UpstreamAbort, match="graph_reserve") if ends else nullcontext()
        with expected:
            server(release, **{"embedding": True, **flags})
