"""Worked examples in few words: runs of tokens, a server that is asked, steps that draft.

A conversation is written in runs of distinct tokens: `A` is 1000 of them, `G` what the first
request sampled, `U`, `Z`, `Y` new ones. Replies are forced, so counts do not depend on weights.
"""

from dataclasses import dataclass
from typing import Any

from cachesim.engines import Engine, Reply
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.typed import of_kind, there_is
from cachesim.units import Tokens, as_tokens
from tests.engines.asking import answer

SEED_ERA = "ik_llama.cpp@d2da6da05"
BIG = 30_000


def run_of(start: int, count: int) -> Tokens:
    return as_tokens(range(start, start + count))


A = run_of(300, 1000)
ONE = run_of(7000, 1)
G = run_of(4000, 2000)  # what the first request samples


class Played:
    """A server with one model, and what each request gave."""

    def __init__(self, model: str, profile: str = SEED_ERA, **options: Any) -> None:
        network = build(preset(model, vocabulary=BIG), "ring")
        engine = Engine.create(profile, model=network, options={"ctx_size": 8192, **options})
        self.server = of_kind(IkLlama, engine)

    def ask(
        self, prompt: Tokens, reply: Tokens, drafts: tuple[Tokens, ...] | None = None
    ) -> tuple[int | None, int | None]:
        """Cached and processed tokens of one request."""
        found = self.full(prompt, reply, drafts)
        return found.cached, found.processed

    def reply(self, prompt: Tokens, reply: Tokens = ONE, **fields: Any) -> Reply:
        """The reply to one request."""
        return answer(self.server, prompt, reply=reply, **fields)

    def full(
        self, prompt: Tokens, reply: Tokens, drafts: tuple[Tokens, ...] | None = None
    ) -> Reply:
        found = answer(self.server, prompt, reply=reply, drafts=drafts)
        explained = sum(loss.before - loss.after for loss in found.losses)
        assert explained == found.equal - there_is(found.cached)
        return found

    @property
    def checkpoints(self) -> list[int]:
        return [checkpoint.pos_max for checkpoint in self.server.slots[0].checkpoints]

    @property
    def parked(self) -> list[int]:
        return [int(entry.length) for entry in self.server.cache.entries]


@dataclass(frozen=True)
class Steps:
    """Drafts of five speculative steps: 3 of 2, 3 of 3, 3 of 0, 3 of 1 accepted, then the end."""

    reply: Tokens

    @property
    def drafts(self) -> tuple[Tokens, ...]:
        wrong = run_of(29_000, 3)
        out, at = [], 1
        for accepted in (2, 3, 0, 1):
            out.append(self.reply[at : at + accepted] + wrong[accepted:3])
            at += accepted + 1
        return tuple(out)
