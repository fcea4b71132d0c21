"""Drafts from a cache of n-grams: what it takes in, and what it proposes."""

from cachesim.engines.llamacpp.drafter import NgramCache
from cachesim.units import Token, as_tokens


def drafted(text: str, cache: NgramCache | None = None, most: int = 8) -> str:
    """A draft after a text of single letters, whose last one was sampled."""
    tokens = as_tokens([ord(each) for each in text])
    found = (cache or NgramCache()).draft(tokens[:-1], tokens[-1], most)
    return "".join(chr(each) for each in found)


def test_what_followed_before_is_proposed() -> None:
    assert drafted("abcdabcda") == "bcdabcda"
    assert drafted("abcdabcda", most=3) == "bcd"


def test_a_long_n_gram_need_not_be_seen_twice_and_a_short_one_must() -> None:
    assert drafted("abcxyabc") == "xyabcxya"
    assert drafted("bxyb") == ""


def test_where_nothing_follows_often_enough_nothing_is_proposed() -> None:
    assert drafted("axaya") == ""


def test_a_text_shorter_than_what_went_in_is_not_taken_in() -> None:
    cache = NgramCache()
    assert drafted("abcdabcdabcda", cache) == "bcdabcda"
    assert drafted("efgefge", cache) == ""
    assert drafted("efgefge") == "fgefgefg"


def test_n_grams_across_the_seam_of_two_texts_are_not_counted() -> None:
    cache = NgramCache()
    cache.draft([], Token(1), 8)
    cache.draft([Token(1)], Token(2), 8)

    assert cache.after == {}
