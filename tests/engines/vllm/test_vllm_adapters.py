"""Adapters: what goes into the ids of blocks, and what is computed under which file."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.errors import OptionError
from cachesim.model.adapters import adapted
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.units import as_tokens

PROMPT = as_tokens(range(300, 370))


def server(files: str = "v1, v2") -> Engine:
    names = [each.strip() for each in files.split(",") if each.strip()]
    network = adapted(build(preset("dense"), "ring"), names)
    return Engine.create("vllm@0.30.0", model=network, options={"lora": files})


def cached(engine: Engine, **lora: Any) -> int:
    ticket = engine.submit(
        Request(prompt=PROMPT, predict=1, options={"lora": lora} if lora else None)
    )
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    assert reply.cached is not None
    return int(reply.cached)


@pytest.mark.parametrize(
    ("second", "hit"),
    [
        ({"name": "L", "path": "v1"}, 64),
        ({"name": "L", "path": "v2"}, 64),  # the name is all that is asked for
        ({"name": "L2", "path": "v1"}, 0),
        ({}, 0),
    ],
)
def test_blocks_are_found_again_by_the_name_of_an_adapter(second: dict[str, str], hit: int) -> None:
    engine = server()
    cached(engine, name="L", path="v1")

    assert hit == cached(engine, **second)


def test_each_request_is_computed_under_its_own_file() -> None:
    rows = {}
    for path in ("v1", "v2"):
        engine = server()
        ticket = engine.submit(
            Request(prompt=PROMPT, predict=1, options={"lora": {"name": "L", "path": path}})
        )
        engine.run()
        reply = engine.reply(ticket)
        assert reply is not None
        rows[path] = reply.logits.tolist()

    assert rows["v1"] != rows["v2"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("L", "is no adapter; write"),
        ({"name": "L"}, "is no adapter; write"),
        ({"name": "", "path": "v1"}, "the name is ''; write a text"),
        ({"name": "L", "path": "v3"}, "there is no file 'v3'; there are v1, v2"),
    ],
)
def test_an_adapter_that_cannot_be_had_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        server().submit(Request(prompt=PROMPT, predict=1, options={"lora": given}))
