"""The common prefix of two lists of tokens: one function for all engines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.base import Message
from cachesim.engines.chat import TEMPLATES, THINK_MARKS, VOCABULARY, ByteTokenizer, ChatTokenizer
from cachesim.engines.tokens import PrefixTree, Rope, get_common_prefix
from cachesim.errors import TemplateError, TokenError
from cachesim.units import Token, as_tokens


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ((), (1,), 0),
        ((1, 2), (3,), 0),
        ((1, 2, 3), (1, 2, 4, 5), 2),
        ((1, 2, 3), (1, 2, 3, 4), 3),
        ((*range(100),), (*range(57), 0, *range(58, 100)), 57),
        ((*range(2000),), (*range(700), 0, *range(701, 2000)), 700),
        ((*range(2000),), (*range(1900),), 1900),
    ],
)
def test_a_common_prefix_ends_where_the_first_token_differs(
    one: tuple[int, ...], other: tuple[int, ...], shared: int
) -> None:
    assert shared == get_common_prefix(one, other) == get_common_prefix(other, one)
    assert shared == get_common_prefix(list(one), other)


def test_ropes_are_compared_as_the_tokens_they_stand_for() -> None:
    one, other = Rope([(7, 0, 50), (9, 0, 3)]), Rope([(7, 0, 40), (8, 0, 9)])

    assert 40 == get_common_prefix(one, other)
    assert 40 == get_common_prefix(as_tokens(list(one)), as_tokens(list(other)))


runs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 6)), max_size=6)


@given(runs, runs, st.integers(-9, 40), st.integers(-9, 40))
def test_it_grows_is_cut_and_sliced_like_a_list(
    first: list[tuple[int, int, int]], more: list[tuple[int, int, int]], low: int, high: int
) -> None:
    rope, other = Rope(first), Rope(more)
    plain, others = list(rope), list(other)

    assert list(rope[low:high]) == plain[low:high]
    assert len(rope) == len(plain)
    rope += other
    plain += others
    assert list(rope) == plain
    del rope[low:high]
    del plain[low:high]
    assert list(rope) == plain
    rope += others
    plain += others
    assert [rope[i] for i in range(len(rope))] == plain
    start = min(max(low, 0), len(plain))
    rope[start : start + len(other)] = other
    plain[start : start + len(others)] = others
    assert list(rope) == plain


@given(runs, runs)
def test_the_common_prefix_is_that_of_the_lists(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]
) -> None:
    one, other = Rope(first), Rope(second)

    expected = get_common_prefix(list(one), list(other))
    assert get_common_prefix(one, other) == expected  # type: ignore[arg-type]
    assert (one == other) == (list(one) == list(other))


SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=40)


def known(sequences: list[list[int]], wanted: list[int]) -> int:
    """The longest prefix of a sequence that another one begins with."""
    return max(
        next((at for at in range(len(wanted)) if sequence[at : at + 1] != wanted[at : at + 1]), 9)
        for sequence in sequences
    )


@given(SEQUENCES)
def test_the_longest_prefix_of_all_is_found_with_the_request_that_came_first(
    sequences: list[list[int]],
) -> None:
    seen = PrefixTree()
    for by, sequence in enumerate(sequences[:-1]):
        for end in range(1, len(sequence) + 1):  # a reply, token by token
            seen.learn(np.array(sequence[:end], np.int64), None, by)
    wanted = sequences[-1]

    count, by = seen.find(np.array(wanted, np.int64), None)

    assert min(known([[], *sequences[:-1]], wanted), len(wanted)) == count
    assert by == next(
        (
            at
            for at, sequence in enumerate(sequences[:-1])
            if count and sequence[:count] == wanted[:count]
        ),
        -1,
    )


def test_as_many_sequences_are_known_as_are_to_be_remembered_and_no_more_than_twice_as_many() -> (
    None
):
    seen = PrefixTree()
    seen.remember(10)
    for number in range(100):
        seen.learn(np.array([number, 1], np.int64), None, number)

    found = [seen.find(np.array([number, 1], np.int64), None)[0] for number in range(100)]

    assert [2] * 10 == found[90:]
    assert 20 >= sum(found) // 2


# The byte-level tokenizer and its chat templates.

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
