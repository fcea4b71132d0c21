"""The server from outside: requests, options, refusals, replies, events."""

from functools import partial
from typing import Any

import pytest
from cache_kit import ATTN, said, system, user

from cachesim.engines import Profile
from cachesim.engines.base import Engine, Message, Request
from cachesim.engines.chat import ByteTokenizer
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamAttributeError
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.server.engine import MlxLm
from cachesim.engines.mlx_lm.server.word_tokenizer import WORD_TEMPLATES, WordTokenizer
from cachesim.errors import ContractError, OptionError, TokenError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.typed import of_kind
from cachesim.units import as_tokens
from tests.engines.asking import answer

PROMPT = as_tokens(list(range(300, 320)))


def server(release: str = "0.32.2", **options: Any) -> MlxLm:
    made = Engine.create(f"mlx-lm@{release}", model=ATTN, options=options, arithmetic="ring")
    return of_kind(MlxLm, made)


ask = partial(answer, predict=4)


def test_an_option_of_a_later_release_is_refused_with_its_release() -> None:
    with pytest.raises(OptionError, match="after-906"):
        server("0.30.7", prompt_cache_size=4)
    assert 4 == server("after-906", prompt_cache_size=4).options.prompt_cache_size


@pytest.mark.parametrize(
    ("release", "kept"), [("0.32.2", 0), ("0.32.2+ollama", 0), ("0.31.3+omlx", 2048)]
)
def test_after_a_restart_only_blocks_on_disk_are_found(release: str, kept: int) -> None:
    engine, prompt = server(release), as_tokens(list(range(300, 320)) * 103)
    cold = ask(engine, prompt)
    assert ask(engine, prompt).cached > 0

    engine.restart()

    warm = ask(engine, prompt)
    assert (kept, cold.generated) == (warm.cached, warm.generated)


def test_a_restart_that_would_leave_unknown_files_is_refused() -> None:
    with pytest.raises(OptionError, match="files"):
        server("0.31.3+vllm-mlx").restart()


def test_a_busy_server_is_not_restarted_and_none_sleeps() -> None:
    engine = server()
    engine.submit(Request(prompt=PROMPT))
    with pytest.raises(OptionError, match="busy"):
        engine.restart()
    with pytest.raises(OptionError, match="restart"):
        engine.sleep()


def test_a_tokenizer_of_ones_own_is_taken() -> None:
    engine = server(tokenizer=ByteTokenizer("chatml"))

    assert ask(engine, (), messages=(Message(role="user", content="Hi"),)).error is None


def test_books_that_disagree_are_a_bug_of_ours() -> None:
    engine = server()
    ask(engine, PROMPT)
    engine.check_integrity()
    engine.server.store.cache.order.queues["assistant"].clear()

    with pytest.raises(ContractError):
        engine.check_integrity()


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.30.5", (None, "causal")),
        ("0.30.5+843", ("1111", "111111")),
        ("0.30.6-843", (None, "causal")),
    ],
)
def test_before_843_a_cache_that_keeps_everything_overlooks_a_window(
    release: str, expected: tuple[str | None, str]
) -> None:
    cache = KVCache(FAMILY.rules(Profile.parse(f"mlx-lm@{release}")).caches)
    cache.offset = 3
    masks = [cache.make_mask(columns, window_size=8) for columns in (1, 3)]

    assert expected == tuple(
        mask if mask is None or isinstance(mask, str) else "".join("1" for _ in mask[0])
        for mask in masks
    )


@pytest.mark.parametrize(
    ("release", "raises"),
    [("0.30.4", True), ("0.30.4+807", False), ("0.30.5", False), ("0.30.5-807", True)],
)
def test_before_807_a_restored_recurrent_cache_has_no_fields_for_padding(
    release: str, *, raises: bool
) -> None:
    cache = ArraysCache(FAMILY.rules(Profile.parse(f"mlx-lm@{release}")).caches, 2)
    restored = ArraysCache.from_state(cache.state, "", rules=cache.rules)

    if raises:
        with pytest.raises(UpstreamAttributeError, match="no attribute 'left_padding'"):
            restored.make_mask(3)
    else:
        assert restored.make_mask(3) is None


def test_from_0_29_1_to_0_30_2_nothing_changed_in_what_is_cached() -> None:
    assert 1 == len({repr(FAMILY.release(name).rules) for name in ("0.29.1", "0.30.0", "0.30.2")})


def test_a_placeholder_that_a_ring_never_wrote_is_no_position() -> None:
    windows = build(preset("swa"), "ring")
    engine = Engine.create("mlx-lm@0.30.2", model=windows)
    ask(engine, PROMPT[:1], predict=1)

    assert 40 == len(ask(engine, PROMPT[:1], predict=40, options={"seed": 0}).generated)


# Words as tokens, and three chat templates in words.

THOUGHT = Message(role="assistant", content="w1 w2 </think> w3")


def test_marks_come_first_and_words_behind_them() -> None:
    plain, thinks = WordTokenizer("chatml"), WordTokenizer("think")

    assert (8, 10) == (plain.encode("w0")[0], thinks.encode("w0")[0])
    assert (None, 8, 9) == (plain.think_start, thinks.think_start, thinks.think_end)
    assert 3 == plain.eos == thinks.eos


@pytest.mark.parametrize("template", WORD_TEMPLATES)
def test_texts_survive_a_round_trip(template: str) -> None:
    tokenizer = WordTokenizer(template, 64)
    text = "w3 user \n <|im_end|> w0"

    assert text == tokenizer.decode(tokenizer.encode(text))


def test_unknown_words_are_token_0() -> None:
    assert (0, 0) == WordTokenizer("chatml", 64).encode("hello w99")


def test_messages_cost_five_and_the_generation_prompt_three_or_five() -> None:
    messages = [system(), user(5, 20)]

    assert 28 == len(WordTokenizer("chatml").apply_chat_template(messages))
    assert 30 == len(WordTokenizer("think").apply_chat_template(messages))
    without = WordTokenizer("think").apply_chat_template(messages, add_generation_prompt=False)
    assert 25 == len(without)


def test_thoughts_are_dropped_or_kept_after_the_last_user_message() -> None:
    before, after = [THOUGHT, user(1, 20)], [user(1, 20), THOUGHT]
    lengths = {
        name: [
            len(WordTokenizer(name).apply_chat_template(each, add_generation_prompt=False))
            for each in (before, after)
        ]
        for name in WORD_TEMPLATES
    }

    assert {
        "chatml": [15, 15],
        "think": [12, 12],
        "think-tools": [12, 17],
        "channel": [15, 15],  # `</think>` is no mark of its
    } == lengths


def test_messages_start_where_they_stand_in_the_prompt() -> None:
    tokenizer = WordTokenizer("chatml")
    messages = [system(), user(5, 20), said()]

    assert (("system", 0), ("user", 15), ("assistant", 25)) == tokenizer.message_starts(messages)


def test_templates_and_roles_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TokenError, match="chatml"):
        WordTokenizer("none")
    with pytest.raises(TokenError, match="developer"):
        WordTokenizer().apply_chat_template([Message(role="developer", content="w1")])


def test_tools_are_a_system_turn_before_all_others() -> None:
    plain = WordTokenizer("chatml")
    tools = plain.with_arguments(["w1 w2", "w3"], {})
    prompt = tools.apply_chat_template([user(5, 20)])

    assert plain.encode("<|im_start|> system \n w1 w2 w3 <|im_end|> \n") == prompt[:8]
    assert plain.apply_chat_template([user(5, 20)]) == prompt[8:]
    assert (("user", 8),) == tools.message_starts([user(5, 20)])


@pytest.mark.parametrize("arguments", [{"think": True}, {"enable_thinking": 1}])
def test_arguments_that_no_template_reads_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="no chat template here reads"):
        WordTokenizer("think").with_arguments((), arguments)
