"""Prompts of places in texts, which no network looks up, are decided on as any others are."""

from collections.abc import Callable, Sequence

import pytest

from cachesim.engines.base import Engine, Reply, Request
from cachesim.engines.events import Event
from cachesim.engines.llamacpp.vocabulary.events import BatchDecoded
from cachesim.engines.tokens import Rope
from cachesim.model.presets import preset
from cachesim.testing.workloads import Seeded
from cachesim.units import Token, Tokens

SERVERS = [
    ("b9093", "hybrid", {}),
    ("b9538", "hybrid", {"ctx_checkpoints": 3, "checkpoint_min_step": 20}),
    ("b9538", "recurrent", {"parallel": 2}),
    ("b9538", "dense", {"parallel": 2, "kv_unified": True}),
    ("b9538", "swa", {}),
    ("b11549", "dense", {"context_shift": True, "ctx_size": 512}),
    ("b11549", "hybrid", {"parallel": 3, "kv_unified": True, "cache_ram": 1}),
    ("b11549", "hybrid-swa", {}),
    ("b11549", "swa", {"parallel": 2}),
    ("b11549", "swa", {"parallel": 2, "kv_unified": True}),
    ("b11549", "recurrent", {"cache_ram": 0}),
    ("b11549+24143", "dense", {"slot_prompt_similarity": 0.0}),
]


class Numbers:
    """Every place of every text as a token of a small vocabulary, no two the same."""

    def __init__(self) -> None:
        self._numbers: dict[int, Token] = {}

    def __call__(self, tokens: Rope) -> Tokens:
        return tuple(self._numbers.setdefault(t, Token(len(self._numbers) + 1)) for t in tokens)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("release", "model", "options"), SERVERS)
def test_names_and_tokens_lead_to_the_same_decisions(
    release: str, model: str, options: dict[str, object]
) -> None:
    for seed in range(3):
        groups = drawn(Seeded(f"{release} {model} {options} {seed}"))
        small = {"ctx_size": 1024, "batch_size": 256, "ubatch_size": 64} | options
        server = (release, model, small)
        named = played(server, groups, lambda rope: rope, "counts")
        assert played(server, groups, Numbers(), "ring") == named


def drawn(draws: Seeded) -> list[list[tuple[Rope, Rope]]]:
    """Groups of prompts with their replies."""
    texts, held, groups = 1, [Rope.of(1, draws.integer(1, 300))], []
    for _ in range(6):
        group = []
        for _ in range(draws.one_of((1, 1, 2))):
            texts += 2
            base = draws.one_of(held)
            prompt = base[: draws.integer(0, len(base))] if draws.integer(0, 2) else base[:]
            if draws.integer(0, 3) or not prompt:
                prompt += Rope.of(texts, draws.integer(1, 150))
            prompt = prompt[:450]
            reply = Rope.of(texts + 1, draws.integer(1, 60))
            held.append(prompt[:])
            held[-1] += reply[:-1]
            group.append((prompt, reply))
        groups.append(group)
    return groups


def played(
    server: tuple[str, str, dict[str, object]],
    groups: Sequence[Sequence[tuple[Rope, Rope]]],
    tokens: Callable[[Rope], object],
    arithmetic: str,
) -> list[object]:
    release, model, options = server
    engine = Engine.create(
        f"llama.cpp@{release}",
        model=preset(model, vocabulary=8192),
        options=options,
        arithmetic=arithmetic,  # type: ignore[arg-type]
    )
    seen: list[object] = []
    for group in groups:
        tickets = [
            engine.submit(
                Request(prompt=tokens(prompt), predict=len(reply), reply=tokens(reply))  # type: ignore[arg-type]
            )
            for prompt, reply in group
        ]
        engine.run()
        engine.check_integrity()
        seen += [told(engine.reply(ticket)) for ticket in tickets]
    return [*seen, decisions(engine.events)]


def told(reply: Reply | None) -> object:
    assert reply is not None
    losses = [(loss.rule, loss.before, loss.after) for loss in reply.losses]
    return reply.cached, reply.processed, reply.slot, reply.error, len(reply.generated), losses


def decisions(events: Sequence[Event]) -> list[Event]:
    """All but the turns, several of which may be taken as one."""
    return [event for event in events if not isinstance(event, BatchDecoded)]
