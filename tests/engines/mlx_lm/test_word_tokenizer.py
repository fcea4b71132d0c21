"""Words as tokens, and three chat templates in words."""

import pytest
from cache_kit import said, system, user

from cachesim.engines.base import Message
from cachesim.engines.mlx_lm.server.word_tokenizer import WORD_TEMPLATES, WordTokenizer
from cachesim.errors import OptionError, TokenError

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
