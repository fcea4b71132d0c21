"""Spans: the same tokens on every machine, and no two that begin alike."""

from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.chat import ByteTokenizer
from cachesim.scenario.prompts import draw_spans, drawn

names = st.text("abcdefgh", min_size=1, max_size=4)


def test_the_generator_is_pinned_so_that_no_library_changes_a_token() -> None:
    assert drawn(0, "S", 6, 265, 512) == drawn(0, "S", 7, 265, 512)[:6]
    assert drawn(0, "S", 6, 265, 512) == [485, 439, 364, 309, 429, 271]


@given(spans=st.dictionaries(names, st.integers(1, 30), max_size=30), seed=st.integers(0, 2**63))
def test_no_two_spans_begin_alike_and_none_holds_a_special_token(
    spans: dict[str, int], seed: int
) -> None:
    found = draw_spans(spans, seed=seed, tokenizer=ByteTokenizer(), vocabulary=512)

    assert {name: len(tokens) for name, tokens in found.items()} == spans
    assert len({tokens[0] for tokens in found.values()}) == len(spans)
    assert all(265 <= token < 512 for tokens in found.values() for token in tokens)


@given(spans=st.dictionaries(names, st.integers(1, 8), max_size=5))
def test_a_further_span_leaves_the_others_as_they_were(spans: dict[str, int]) -> None:
    tokenizer = ByteTokenizer()
    few = draw_spans(spans, seed=1, tokenizer=tokenizer, vocabulary=512)

    more = draw_spans({**spans, "zz": 5}, seed=1, tokenizer=tokenizer, vocabulary=512)

    assert {name: more[name] for name in few} == few


def test_a_small_vocabulary_is_used_whole() -> None:
    found = draw_spans({"S": 300}, seed=0, tokenizer=ByteTokenizer(), vocabulary=8)

    assert set(found["S"]) == set(range(8))


def test_a_template_that_thinks_keeps_its_marks_for_itself() -> None:
    tokenizer = ByteTokenizer("strip-reasoning")

    found = draw_spans({"S": 5000}, seed=0, tokenizer=tokenizer, vocabulary=512)

    assert not {510, 511} & set(found["S"])


def test_texts_and_ids_are_taken_as_they_are() -> None:
    found = draw_spans(
        {"t": "user\n", "i": (3, 4)}, seed=0, tokenizer=ByteTokenizer(), vocabulary=512
    )

    assert found == {"t": (262, 264), "i": (3, 4)}
