"""Each model class with its own rule for padding: right and wrong where the real one is."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from cachesim.engines import Engine, Request
from cachesim.engines.base import Message
from cachesim.engines.mlx_lm.families import FAMILIES, ModelFamily, RecurrentRules, family_of
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import merge_caches
from cachesim.errors import OptionError
from cachesim.model.build import build
from cachesim.model.presets import PRESETS, preset, tiny
from cachesim.model.spec import ModelSpec
from cachesim.typed import there_is
from cachesim.units import as_tokens
from cachesim.verify.oracle import cold_logits


def chat(*contents: str) -> tuple[Message, ...]:
    """Messages of user and assistant in turns."""
    roles = ("user", "assistant", "user")
    return tuple(
        Message(role=role, content=text) for role, text in zip(roles, contents, strict=False)
    )


def served(spec: ModelSpec, release: str, groups: Sequence[Sequence[tuple[Message, ...]]]) -> str:
    """Serve groups of chats; whether every answer of the last group is the cold one."""
    engine = Engine.create(f"mlx-lm@{release}", model=spec, options={"tokenizer": "words"})
    network, right = build(spec), []
    for group in groups:
        tickets = [
            engine.submit(Request(prompt=(), messages=each, predict=2, reply=SAID))
            for each in group
        ]
        engine.run()
        for ticket in tickets:
            reply = there_is(engine.reply(ticket))
            assert reply.error is None
            tokens = reply.prompt + reply.generated[:-1]
            cold = cold_logits(network, tokens)[len(reply.prompt) - 1 :]
            right.append(np.array_equal(cold, reply.logits))
    return "right" if all(right) else "wrong"


SAID = as_tokens([17, 3])
"""`w9` and the end mark."""


GROUPS = (
    [chat("w1 w2")],
    [chat("w3 w4")],
    [chat("w1 w2", "w9", "w5"), chat("w3 w4", "w9", "w5 w6 w7 w8 w5 w6 w7 w8 w5 w6")],
)


@pytest.mark.parametrize(("masks", "expected"), [(True, "right"), (False, "wrong")])
def test_a_newcomers_class_is_served_by_its_own_rules(
    monkeypatch: pytest.MonkeyPatch, masks: bool, expected: str
) -> None:
    rules = RecurrentRules(masks=masks, advances=masks, conv_at_lengths=masks)
    added = ModelFamily(name="newcomer", about="A test's", layers=("ssm", "attention"), rules=rules)
    monkeypatch.setitem(cast("dict[str, ModelFamily]", FAMILIES), "newcomer", added)
    spec = tiny("hybrid", family="newcomer", vocabulary=64)

    assert expected == served(spec, "0.32.2", GROUPS)


def gemma3n(release: str, **options: int) -> tuple[str | None, bool]:
    """A fresh prompt of 20 tokens: its error, and whether its answer is the cold one."""
    spec = tiny("swa", family="gemma3n", window=64)
    engine = Engine.create(f"mlx-lm@{release}", model=spec, arithmetic="ring")
    prompt = as_tokens(list(range(300, 320)))
    ticket = engine.submit(Request(prompt=prompt, predict=2, reply=SAID, options=options))
    engine.run()
    reply = there_is(engine.reply(ticket))
    cold = cold_logits(spec, (*prompt, SAID[0]), arithmetic="ring")[-2:]
    return reply.error, np.array_equal(cold, reply.logits)


ROOT = Path(__file__).parents[3]
ROOMS = (
    "cachesim/engines/mlx_lm",
    "conformance/real",
    "cachesim/prove",
    "tests/engines/mlx_lm",
    "tests/conformance",
    "tests/prove",
)


CAUSES = "conformance/real/transformers/causes.py"
"""It names model types of Transformers, of which one has the name of a class of mlx-lm."""


@pytest.mark.parametrize(("name", "others"), [("plamo2", []), ("jamba", [CAUSES])])
def test_a_class_stands_in_the_files_of_the_recipe_and_nowhere_else(
    name: str, others: list[str]
) -> None:
    recipe = (ROOT / "docs/mlx-lm-hit-rates.md").read_text().partition("## Add a model class")[2]
    listed = re.findall(r"^\d\. `([^`]+)`", recipe, re.MULTILINE)
    naming = [
        str(file.relative_to(ROOT))
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        if re.search(rf"\b{name}\b", file.read_text())
    ]

    assert 4 == len(listed)
    assert sorted(listed + others) == sorted(naming)


def test_every_preset_has_a_family() -> None:
    assert {
        "dense": "llama",
        "swa": "gemma3_text",
        "recurrent": "mamba2",
        "hybrid": "granitemoehybrid",
        "hybrid-delta": "qwen3_5",
        "hybrid-swa": "lfm2",
        "hybrid-mtp": "qwen3_5",
    } == {name: family_of(spec).name for name, spec in PRESETS.items()}


@pytest.mark.parametrize(
    ("name", "family", "says"),
    [
        ("hybrid", "granite", "no model family 'granite'"),
        ("hybrid", "mamba2", "this model has ssm, attention"),
        ("dense", "qwen3_5", "this model has attention"),
    ],
)
def test_a_family_that_does_not_fit_is_refused(name: str, family: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        family_of(preset(name, family=family))


def test_a_release_changes_the_rules_of_a_class() -> None:
    classes = {release.name: release.rules.classes for release in FAMILY.releases}

    assert classes["0.31.1"]["qwen3_5"].advances is False
    assert classes["0.31.2"]["qwen3_5"].advances is True
    assert set(FAMILIES) == set(classes["0.32.2"])


BYTES = {
    ("recurrent", "mamba2"): {"0.31.1": [800] * 2, "0.32.2": [1312] * 2},
    ("hybrid-delta", "qwen3_5"): {"0.31.1": [448, 8192], "0.32.2": [704, 8192]},
    ("hybrid-swa", "lfm2"): {"0.31.1": [64, 8192], "0.32.2": [64, 8192]},
    ("dense", "llama"): {"0.31.1": [8192] * 2, "0.32.2": [8192] * 2},
}
"""Bytes of 18 tokens in the real classes in bfloat16, layer by layer."""


@pytest.mark.parametrize(("names", "expected"), BYTES.items(), ids=str)
def test_layers_take_the_bytes_of_the_real_ones(
    names: tuple[str, str], expected: dict[str, list[int]]
) -> None:
    layers = {"layers": ("conv", "attention"), "window": 0} if names[1] == "lfm2" else {}
    groups = {"groups": 1} if names[1] == "mamba2" else {}
    spec = tiny(names[0], family=names[1], vocabulary=64, **layers, **groups)
    found = {}
    for release in expected:
        rules = FAMILY.release(release).rules
        forward = Forward(build(spec), rules.caches, recurrent=rules.of_class(family_of(spec)))
        cache = forward.make_cache()
        forward(np.array([range(10, 28)]), cache)
        found[release] = [layer.nbytes for layer in cache]

    assert expected == found


@pytest.mark.parametrize(("release", "doubled"), [("0.31.3", True), ("0.32.2", False)])
def test_whoever_joins_a_batch_doubles_its_bytes_until_1491(release: str, doubled: bool) -> None:
    forward = Forward(build(tiny("dense", vocabulary=64)), FAMILY.release(release).rules.caches)
    held, fresh = forward.make_cache(), forward.make_cache()
    forward(np.array([range(10, 28)]), held)
    one, other = merge_caches([held]), merge_caches([fresh])
    alone = one[0].extract(0).nbytes
    one[0].extend(other[0])

    assert one[0].extract(0).nbytes == alone * (2 if doubled else 1)
