"""How prompts are put together from spans, replies, pieces and messages."""

import pytest

from cachesim.errors import ScenarioError
from cachesim.scenario import scenario_of
from cachesim.scenario.prompts import Vocabulary
from cachesim.units import as_tokens
from cachesim.verify import Part
from tests.scenario.stories import story


def vocabulary(**changes: object) -> Vocabulary:
    return Vocabulary.of(scenario_of(story(expect=[], **changes)), vocabulary=512)


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
    words = Vocabulary.of(scenario, vocabulary=512)
    words.replies["A"] = as_tokens([400, 401, 402])

    prompt = words.prompt(scenario.step[1])

    assert (*words.spans["S"][:2], 401, 402) == prompt[3:7]


@pytest.mark.parametrize("word", ["S[", "S[1]", "S[-1:]", "S[a:b]", "[1:2]", "S[1:2:3]"])
def test_what_is_no_piece_is_no_span_either(word: str) -> None:
    with pytest.raises(ScenarioError, match="there is no span"):
        scenario_of(story(step=[{"prompt": word}], expect=[]))


def test_parts_name_the_stretches_of_a_prompt() -> None:
    scenario = scenario_of(story(step=[{"prompt": "S a[:2]"}], expect=[]))
    words = Vocabulary.of(scenario, vocabulary=512)
    step = scenario.step[0]

    parts = words.parts(step, words.prompt(step))

    expected = (Part(name="S", start=0, end=20), Part(name="a[:2]", start=20, end=22))
    assert expected == parts


def test_parts_of_a_chat_are_its_messages() -> None:
    turns = [{"role": "system", "content": "{a}"}, {"role": "user", "content": "{b}"}]
    scenario = scenario_of(story(step=[{"messages": turns}], expect=[]))
    words = Vocabulary.of(scenario, vocabulary=512)
    step = scenario.step[0]

    parts = words.parts(step, words.prompt(step))

    assert [part.name for part in parts] == ["system message 1", "user message 2"]
    assert [(part.start, part.end) for part in parts] == [(0, 10), (10, 24)]
