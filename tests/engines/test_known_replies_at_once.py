"""Steps of a known reply at once, as a replay runs them, decide what they decide one by one."""

import random
from typing import Any, cast

import pytest

from cachesim import Engine, Request, preset
from cachesim.engines.tokens import Rope
from cachesim.errors import UpstreamEndless
from cachesim.play.loop import Loop
from cachesim.units import Tokens

STEPWISE = {"ChunkScheduled", "StepWritten"}
"""Events of single steps."""

SERVERS: dict[str, tuple[tuple[str, ...], dict[str, tuple[object, ...]]]] = {
    "vllm": (
        ("0.33.0", "0.30.0", "0.25.1", "0.22.1"),
        {
            "num_gpu_blocks_override": (40, 60, 100, 400),
            "async_scheduling": (None, True, False),
            "max_num_batched_tokens": (None, 64, 128),
        },
    ),
    "sglang": (
        ("0.5.23", "0.5.22", "0.5.9"),
        {
            "max_total_tokens": (400, 800, 3000),
            "page_size": (None, 1, 16),
            "mamba_track_interval": (None, 64, 128),
            "disable_overlap_schedule": (None, True),
        },
    ),
}


def workload(rng: random.Random) -> list[tuple[Rope, Rope]]:
    """Prompts that continue earlier ones, or leave them; replies of up to 600 tokens."""
    held: list[Rope] = []
    requests = []
    for number in range(rng.randint(3, 12)):
        prompt = Rope()
        if held and rng.random() < 0.6:
            before = rng.choice(held)
            prompt += before[: rng.randint(1, len(before))] if rng.random() < 0.3 else before
        prompt += Rope.of(2 * number + 1, rng.randint(1, 120))
        reply = Rope.of(2 * number + 2, rng.randint(1, 600 if rng.random() < 0.2 else 70))
        whole = prompt.copy()
        whole += reply
        held.append(whole)
        requests.append((prompt, reply))
    return requests


def told(server: Engine, requests: list[tuple[Rope, Rope]], most: int) -> list[Any]:
    """Replies, events and contents, request by request."""
    server.limit_turns(most)
    loop, found = Loop(server), list[Any]()
    for prompt, reply in requests:
        tokens, forced = cast("Tokens", prompt), cast("Tokens", reply)
        ticket = server.submit(Request(prompt=tokens, predict=len(reply), reply=forced))
        try:
            loop.drain()
        except UpstreamEndless as end:
            return [*found, str(end)]
        got = server.reply(ticket)
        assert got is not None
        events = [str(e) for e in server.events if type(e).__name__ not in STEPWISE]
        answer = got.cached, got.error, [*got.generated], got.equal, got.losses, len(got.logits)
        found.append((answer, events, server.snapshot()))
        server.check_integrity()
        server.forget(ticket)
    return found


@pytest.mark.parametrize("model", ["dense", "hybrid", "swa"])
@pytest.mark.parametrize("engine", SERVERS)
def test_steps_at_once_decide_what_single_steps_decide(engine: str, model: str) -> None:
    releases, flags = SERVERS[engine]
    passed = 0
    for seed in range(8):
        rng = random.Random(f"{engine} {model} {seed}")
        drawn = {name: rng.choice(values) for name, values in flags.items()}
        drawn.pop("page_size" if model == "hybrid" else "mamba_track_interval", None)
        options = {name: value for name, value in drawn.items() if value is not None}
        profile, requests = f"{engine}@{rng.choice(releases)}", workload(rng)
        one_by_one, at_once = (
            Engine.create(profile, model=preset(model), options=options, arithmetic="counts")
            for _ in range(2)
        )
        expected = told(one_by_one, requests, 1)
        assert expected == told(at_once, requests, 1 << 30), (seed, profile, options)
        passed += len(expected)
    assert passed > 30
