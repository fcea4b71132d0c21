"""Prompts from spans, replies, pieces and messages."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.chat import ByteTokenizer, Message
from cachesim.engines.family import Profile
from cachesim.errors import ScenarioError
from cachesim.model.presets import preset
from cachesim.play.session import Session
from cachesim.scenario import scenario_of
from cachesim.scenario.prompts import Vocabulary, draw_spans, drawn
from cachesim.units import as_tokens
from cachesim.verify import Part
from tests.scenario.stories import story

ENGINE = {"name": "llama.cpp", "profiles": ["b11549"]}


def vocabulary(**changes: object) -> Vocabulary:
    return Vocabulary.of(scenario_of(story(expect=[], **changes)), preset("dense"))


def test_words_are_joined_in_their_order() -> None:
    words = vocabulary()
    words.replies["A"] = as_tokens([400, 401])

    expected = words.spans["a"] + as_tokens([400, 401]) + words.spans["b"]
    assert expected == words.tokens("a A.reply  b")


@pytest.mark.parametrize(
    ("word", "start", "end"),
    [("S[:5]", 0, 5), ("S[5:]", 5, 20), ("S[3:7]", 3, 7), ("S[:]", 0, 20), ("S[:999]", 0, 20)],
)
def test_a_piece_is_taken_as_python_would(word: str, start: int, end: int) -> None:
    words = vocabulary()

    assert words.spans["S"][start:end] == words.tokens(word)


def test_pieces_of_replies_and_of_spans_in_messages_are_found() -> None:
    steps = [
        {"name": "A", "prompt": "S"},
        {"messages": [{"role": "user", "content": "{S[:2]}{A.reply[1:]}"}]},
    ]
    scenario = scenario_of(story(step=steps, expect=[]))
    words = Vocabulary.of(scenario, preset("dense"))
    words.replies["A"] = as_tokens([400, 401, 402])

    prompt = words.prompt(scenario.step[1])

    assert (*words.spans["S"][:2], 401, 402) == prompt[3:7]


@pytest.mark.parametrize("word", ["S[", "S[1]", "S[-1:]", "S[a:b]", "[1:2]", "S[1:2:3]"])
def test_what_is_no_piece_is_no_span_either(word: str) -> None:
    with pytest.raises(ScenarioError, match="there is no span"):
        scenario_of(story(step=[{"prompt": word}], expect=[]))


def test_parts_name_the_stretches_of_a_prompt() -> None:
    scenario = scenario_of(story(step=[{"prompt": "S a[:2]"}], expect=[]))
    words = Vocabulary.of(scenario, preset("dense"))
    step = scenario.step[0]

    parts = words.parts(step, words.prompt(step))

    expected = (Part(name="S", start=0, end=20), Part(name="a[:2]", start=20, end=22))
    assert expected == parts


def test_parts_of_a_chat_are_its_messages() -> None:
    turns = [{"role": "system", "content": "{a}"}, {"role": "user", "content": "{b}"}]
    scenario = scenario_of(story(step=[{"messages": turns}], expect=[]))
    words = Vocabulary.of(scenario, preset("dense"))
    step = scenario.step[0]

    parts = words.parts(step, words.prompt(step))

    assert [part.name for part in parts] == ["system message 1", "user message 2"]
    assert [(part.start, part.end) for part in parts] == [(0, 10), (10, 24)]


def test_a_gap_s_prompt_is_named_as_far_as_the_server_keeps_it() -> None:
    steps = [{"prompt": "S a", "suffix": "b", "options": {"endpoint": "infill"}, "predict": 1}]
    changes = {"spans": {"S": 50, "a": 4, "b": 40}, "expect": [], "step": steps}
    scenario = scenario_of(story(engine={**ENGINE, "options": {"batch_size": 64}}, **changes))
    (record,) = Session(scenario, Profile.parse("llama.cpp@b11549"), arithmetic="ring").run()
    spans = Vocabulary.of(scenario, preset("dense")).spans

    assert (4, *spans["S"][6:], *spans["a"], 5, *spans["b"][:14], 6) == record.prompt
    assert (
        Part(name="mark of the gap", start=0, end=1),
        Part(name="S", start=1, end=45),
        Part(name="a", start=45, end=49),
        Part(name="mark of the gap", start=49, end=50),
        Part(name="b", start=50, end=64),
        Part(name="mark of the gap", start=64, end=65),
    ) == record.parts


@pytest.mark.parametrize(
    ("options", "tools", "opening"),
    [
        ({}, (), True),
        ({"tools": ["look", "find"]}, ("look", "find"), True),
        ({"tools": "look", "add_generation_prompt": False}, ("look",), False),
        ({"add_generation_prompt": False}, (), False),
    ],
)
def test_a_chat_s_options_change_its_prompt_as_they_change_the_server_s(
    options: dict[str, object], tools: tuple[str, ...], opening: bool
) -> None:
    step = {"messages": [{"role": "user", "content": "hello"}], "options": options, "predict": 1}
    scenario = scenario_of(story(engine=ENGINE, step=[step], expect=[]))
    (record,) = Session(scenario, Profile.parse("llama.cpp@b11549"), arithmetic="ring").run()
    tokenizer = ByteTokenizer().with_arguments(tools, {})

    messages = [Message(role="user", content="hello")]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=opening)
    assert rendered == record.prompt
    assert record.reply is not None
    assert rendered == record.reply.prompt
    assert ["tools", "user message 1"][not tools :] == [part.name for part in record.parts]


def test_a_client_that_leaves_is_gone_when_its_slot_holds_so_many_tokens() -> None:
    steps = [
        {"name": "A", "prompt": "S", "predict": 9, "leaves": "replying", "held": 23, "slot": 0},
        {"name": "B", "prompt": "a", "predict": 9, "leaves": "reading", "held": 8, "slot": 1},
    ]
    options = {"batch_size": 4, "ubatch_size": 4, "parallel": 2, "cache_ram": 0}
    scenario = scenario_of(
        story(
            engine={**ENGINE, "options": options}, step=steps, expect=[], spans={"S": 20, "a": 12}
        )
    )
    session = Session(scenario, Profile.parse("llama.cpp@b11549"), arithmetic="ring")

    assert ["cancelled", "cancelled"] == [record.error for record in session.run()]
    assert [23, 8] == [len(tokens) for name, tokens in session.known if name.startswith("slot")]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"prompt": "S", "suffix": "a"}, "step[0].suffix: has no meaning without options = { end"),
        ({"prompt": "S", "query": 3}, "step[0].query: has no meaning without options = { endpo"),
        ({"prompt": "S", "held": 3}, "step[0].leaves: missing; leaves and held belong together"),
        ({"prompt": "S", "leaves": "reading"}, "step[0].held: missing; leaves and held belong"),
        ({"prompt": "S", "leaves": "soon", "held": 1}, "must be one of reading, replying"),
        (
            {"messages": [{"role": "user", "content": "x"}], "options": {"endpoint": "infill"}},
            "step[0].messages: have no meaning for infill; write prompt and suffix",
        ),
    ],
)
def test_keys_of_one_endpoint_are_refused_at_others(step: dict[str, object], said: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(said)):
        scenario_of(story(engine=ENGINE, step=[step], expect=[]))


# Spans: the same tokens on every machine, and no two that begin alike.

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
