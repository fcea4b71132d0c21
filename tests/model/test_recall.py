"""Networks that recall facts: what they reply is what their prompt states."""

import tomllib
from random import Random

import pytest

from cachesim import run_scenario
from cachesim.engines import Engine, Request
from cachesim.errors import ScenarioError, SpecError
from cachesim.model import recall
from cachesim.model.build import build
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import RECALL, preset
from cachesim.model.spec import ModelSpec
from cachesim.model.weights import draw
from cachesim.scenario.shipped import shipped_file
from cachesim.typed import there_is
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle

CELLS = {"attention", "window", "conv"}
"""Layers without a state that a later fact of the same name overwrites."""


def reply(spec: ModelSpec, text: str) -> str:
    """The greedy reply of one token."""
    tokens = as_tokens(recall.encode(text))
    row = Oracle(build(spec)).logits(tokens, as_tokens([0]), ())[0]
    return recall.text_of([int(row.argmax())])


def drawn_facts(spec: ModelSpec, chance: Random) -> tuple[str, str]:
    """A prompt with facts, fillers and a question, and its right reply."""
    names = chance.sample(recall.NAMES, chance.randint(1, len(recall.NAMES)))
    if not set(spec.layers) <= CELLS:
        names = chance.choices(recall.NAMES, k=len(names))
    words: list[str] = []
    known, at = {}, {}
    for name in names:
        words += chance.choices((*recall.FILLERS, "."), k=chance.randint(0, 20))
        known[name] = recall.WORDS[
            recall.FIRST_VALUE - recall.ASK + chance.randrange(recall.VALUES)
        ]
        words += [name, known[name]]
        at[name] = len(words) - 1
    words += chance.choices(recall.FILLERS, k=chance.randint(0, 20))
    asked = chance.choice(names if chance.randint(0, 3) else recall.NAMES)
    words += [asked, "?"]
    forgotten = spec.window and len(words) - 1 - at.get(asked, 0) >= spec.window
    right = "unknown" if forgotten else known.get(asked, "unknown")
    return " ".join(words), right


def wrong_replies(spec: ModelSpec, count: int) -> list[tuple[str, str]]:
    """Prompts of `count` drawn ones that get another reply, with the right one."""
    chance = Random(spec.name)
    drawn = (drawn_facts(spec, chance) for _ in range(count))
    return [(text, right) for text, right in drawn if reply(spec, text) != right]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RECALL)
@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_every_fact_set_is_recalled(name: str, count: int) -> None:
    assert wrong_replies(RECALL[name], count) == []


REPROCESSED = {"recall-hybrid-swa"}
"""Models whose prompts llama.cpp reprocesses: convolutions beside a window."""

SHORT = 6
"""Tokens of a prompt of which a window's checkpoint may hold none."""


def wrong_cached_replies(spec: ModelSpec, count: int) -> list[tuple[str, str]]:
    """The same of a server that has the facts, but not the question, in its cache."""
    chance, options = Random(spec.name), {"cache_ram": 0}
    engine = Engine.create("llama.cpp@b11549+24035", model=build(spec), options=options)
    found = []
    for text, right in (drawn_facts(spec, chance) for _ in range(count)):
        tokens = as_tokens(recall.encode(text))
        for prompt in (tokens[:-2], tokens):
            ticket = engine.submit(Request(prompt=prompt, predict=1))
            engine.run()
        answer = there_is(engine.reply(ticket))
        reused = answer.cached > 0 or len(tokens) <= SHORT or spec.name in REPROCESSED
        if not reused or recall.text_of(answer.generated) != right:
            found.append((text, right))
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", RECALL)
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.thorough)])
def test_every_fact_set_is_recalled_from_the_cache(name: str, count: int) -> None:
    assert wrong_cached_replies(RECALL[name], count) == []


def test_a_network_without_its_memory_layer_recalls_nothing() -> None:
    spec = RECALL["recall-hybrid-delta"]
    weights = draw(spec)
    weights["blk.2.ssm_out.weight"][:] = 0
    tokens = as_tokens(recall.encode("code alice 7413 . alice ?"))
    row = Oracle(FloatNetwork(spec, weights)).logits(tokens, as_tokens([0]), ())[0]
    assert recall.text_of([int(row.argmax())]) == "unknown"


@pytest.mark.parametrize(
    ("name", "distance", "expected"),
    [
        ("recall-swa", 31, "7413"),
        ("recall-swa", 32, "unknown"),
        ("recall-hybrid-swa", 31, "7413"),
        ("recall-hybrid-swa", 32, "unknown"),
        ("recall-dense", 200, "7413"),
        ("recall-recurrent", 200, "7413"),
    ],
)
def test_a_window_layer_forgets_a_fact_behind_its_window(
    name: str, distance: int, expected: str
) -> None:
    text = "alice 7413" + " the" * (distance - 2) + " alice ?"
    assert reply(RECALL[name], text) == expected


@pytest.mark.parametrize("name", ["recall-recurrent", "recall-delta", "recall-hybrid-delta"])
def test_a_later_fact_overwrites_the_state_of_an_earlier_one(name: str) -> None:
    assert reply(RECALL[name], "bob 2361 . bob 7413 . alice 2408 . bob ?") == "7413"


@pytest.mark.parametrize("name", RECALL)
def test_a_cached_answer_is_the_cold_one(name: str) -> None:
    network = build(RECALL[name])
    engine = Engine.create("llama.cpp@b11549+24035", model=network)
    oracle = Oracle(network)
    shared = "please note the code of alice 7413 . and the number of bob 2361 ." + " the" * 60
    for text in (shared, f"{shared} alice ?", f"{shared} bob ?", f"{shared} carol ?"):
        tokens = as_tokens(recall.encode(text))
        ticket = engine.submit(Request(prompt=tokens, predict=2))
        engine.run()
        answer = there_is(engine.reply(ticket))
        cold = oracle.logits(tokens, answer.generated, ())
        assert answer.logits.tobytes() == cold.tobytes()


@pytest.mark.parametrize("name", RECALL)
def test_logits_depend_on_every_token(name: str) -> None:
    spec = preset(name)
    rows = []
    for first in ("the", "of"):
        tokens = as_tokens(recall.encode(f"{first} code alice 7413 . alice ?"))
        rows.append(Oracle(build(spec)).logits(tokens, as_tokens([0]), ())[0])
    assert rows[0].tobytes() != rows[1].tobytes()


def test_words_of_a_text_are_tokens_and_back() -> None:
    text = "please note the code of leo 7413 . unknown ?"
    assert recall.text_of(recall.encode(text)) == text
    assert len(set(recall.WORDS)) == len(recall.WORDS)


def test_an_unknown_word_is_named_with_the_words_that_there_are() -> None:
    with pytest.raises(SpecError, match="'hello' is not among the words of a model"):
        recall.encode("hello alice")

    mapping = tomllib.loads(shipped_file("llama.cpp-two-codes").read_text())
    mapping["spans"]["code-a"] = "secret . code"
    with pytest.raises(ScenarioError, match=r"^spans\.code-a: 'secret' is not among"):
        run_scenario(mapping, profile="llama.cpp@b11549")


def test_other_sizes_are_refused() -> None:
    with pytest.raises(SpecError, match="leave width, head_size and vocabulary out"):
        build(preset("recall-dense", width=128))
