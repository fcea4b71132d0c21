"""The byte-level tokenizer and its chat templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.base import Message
from cachesim.engines.chat import TEMPLATES, THINK_MARKS, VOCABULARY, ByteTokenizer, ChatTokenizer
from cachesim.errors import TemplateError, TokenError
from cachesim.units import Token

templates = st.sampled_from(sorted(TEMPLATES))


def chat(*turns: tuple[str, str]) -> tuple[Message, ...]:
    return tuple(Message(role=role, content=content) for role, content in turns)


def test_it_is_a_chat_tokenizer() -> None:
    tokenizer: ChatTokenizer = ByteTokenizer()

    assert tokenizer.think_start is None


def test_words_and_marks_of_one_tokenizer_are_unknown_to_another() -> None:
    word, mark = Token(265), THINK_MARKS[0]
    reasons = next(name for name, each in sorted(TEMPLATES.items()) if each.thinks)
    plain, named = ByteTokenizer(), ByteTokenizer(words={word: "alice"})

    assert ("[265]", "alice") == (plain.decode([word]), named.decode([word]))
    assert (word,) == named.encode("alice") != plain.encode("alice")
    assert ("[510]", "<think>") == (plain.decode([mark]), ByteTokenizer(reasons).decode([mark]))


@given(text=st.text(), template=templates)
def test_any_text_comes_back_unchanged(text: str, template: str) -> None:
    tokenizer = ByteTokenizer(template)
    plain = text.encode("utf-8", "ignore").decode()

    assert plain == tokenizer.decode(tokenizer.encode(plain))


@given(words=st.lists(st.integers(265, VOCABULARY - 1)), template=templates)
def test_words_come_back_as_the_same_tokens(words: list[int], template: str) -> None:
    tokenizer = ByteTokenizer(template)
    tokens = tuple(map(Token, words))

    assert tokens == tokenizer.encode(tokenizer.decode(tokens))


def test_no_two_tokens_share_a_text_but_the_newline_and_its_byte() -> None:
    tokenizer = ByteTokenizer("strip-reasoning")
    newline_byte = Token(13)

    texts = {tokenizer.decode((Token(i),)) for i in range(VOCABULARY) if i != newline_byte}

    assert len(texts) == VOCABULARY - 1
    assert tokenizer.decode((newline_byte,)) == "\n"
    assert tokenizer.encode("\n") == (264,)


def test_chatml_counts_five_tokens_a_message_and_three_to_begin_a_reply() -> None:
    tokenizer = ByteTokenizer()
    messages = chat(("system", "[265][266]"), ("user", "[300]"))

    prompt = tokenizer.apply_chat_template(messages)

    expected = (259, 261, 264, 265, 266, 260, 264, 259, 262, 264, 300, 260, 264, 259, 263, 264)
    assert expected == prompt
    assert tokenizer.message_starts(messages) == (("system", 0), ("user", 7))


def test_strip_reasoning_drops_the_thoughts_of_earlier_turns_only() -> None:
    tokenizer = ByteTokenizer("strip-reasoning")
    asked = chat(("user", "[300]"), ("assistant", "<think>\n[400]</think>\n[301]"))

    while_it_is_the_last = tokenizer.apply_chat_template(asked, add_generation_prompt=False)
    once_the_next_comes = tokenizer.apply_chat_template((*asked, *chat(("user", "[302]"))))

    assert 400 in while_it_is_the_last
    assert 400 not in once_the_next_comes
    assert once_the_next_comes[-5:] == (259, 263, 264, 510, 264)
    assert (tokenizer.think_start, tokenizer.think_end) == (510, 511)


def test_needs_user_refuses_a_conversation_without_a_user() -> None:
    with pytest.raises(TemplateError, match="no user message"):
        ByteTokenizer("needs-user").apply_chat_template(chat(("system", "[265]")))


def test_every_message_starts_where_the_rendered_prompt_has_its_mark() -> None:
    messages = chat(("system", "a b"), ("user", "<think>x</think>"), ("assistant", "ok"))
    for name in TEMPLATES:
        tokenizer = ByteTokenizer(name)
        prompt = tokenizer.apply_chat_template(messages)

        assert {259} == {prompt[start] for _, start in tokenizer.message_starts(messages)}


def test_a_template_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(TokenError, match="'mistral'; there are chatml"):
        ByteTokenizer("mistral")


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(TokenError, match="token 512"):
        ByteTokenizer().decode((Token(512),))
