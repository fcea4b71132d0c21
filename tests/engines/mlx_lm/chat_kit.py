"""Toy conversations: a server, messages of counted words, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cachesim.engines.base import Engine, Message, Reply, Request, Ticket
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.events import Insertion, ModelCalled, PromptProgress
from cachesim.model.presets import tiny
from cachesim.model.spec import ModelSpec
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle

ATTN = tiny("dense")
HYB = tiny("hybrid-delta")
SWA = tiny("swa", window=16)
MODELS = {"attn": ATTN, "swa": SWA, "hyb": HYB}

PLAIN_REPLY = as_tokens((100, 101, 102, 3))
"""Three words and the end mark."""

THINKING_REPLY = as_tokens((110, 111, 9, 100, 101, 102, 3))
"""Two thoughts, the closing mark, three words, the end mark."""


def text(count: int, first: int) -> str:
    return " ".join(f"w{first + i}" for i in range(count))


def system(count: int = 10, first: int = 0) -> Message:
    return Message(role="system", content=text(count, first))


def user(count: int, first: int) -> Message:
    return Message(role="user", content=text(count, first))


def said(template: str = "chatml") -> Message:
    """What the client sends back of a reply."""
    first = 90 if template == "think" else 92
    return Message(role="assistant", content=text(3, first))


def tool(count: int, first: int) -> Message:
    return Message(role="tool", content=text(count, first))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: what was reported, or the error; and the oracle's word."""

    cached: int | str
    same: bool | None


class Chat:
    """A server of one release, with a word tokenizer."""

    def __init__(
        self, release: str, model: ModelSpec, template: str = "chatml", **options: Any
    ) -> None:
        more = {"tokenizer": "words", "chat_template": template}
        engine = Engine.create(
            f"mlx-lm@{release}", model=model, options=options | more, arithmetic="ring"
        )
        assert isinstance(engine, MlxLm)
        self.engine = engine
        self.oracle = Oracle(engine.network)
        self.reply = PLAIN_REPLY if template == "chatml" else THINKING_REPLY
        self.seen = 0

    def ask(self, *messages: Message, **options: Any) -> Outcome:
        """One request, the server idle before and after."""
        return self.together([messages], **options)[0]

    def together(self, conversations: Sequence[Sequence[Message]], **options: Any) -> list[Outcome]:
        """Several requests that are admitted before any is computed."""
        self.seen = len(self.engine.events)
        reply = options.pop("reply", self.reply)
        tickets = [
            self.engine.submit(
                Request(
                    prompt=(),
                    messages=tuple(each),
                    predict=len(reply),
                    reply=reply,
                    options=options or None,
                )
            )
            for each in conversations
        ]
        return self.outcomes(tickets)

    def submit(self, *messages: Message, reply: Sequence[int]) -> Ticket:
        """Queue a request and compute nothing yet."""
        self.seen = len(self.engine.events)
        tokens = as_tokens(list(reply))
        return self.engine.submit(
            Request(prompt=(), messages=messages, predict=len(tokens), reply=tokens)
        )

    @property
    def said_so_far(self) -> list[int]:
        """The tokens of the requests at work."""
        batch = self.engine.server.batch
        return [] if batch is None else [t for job in batch.jobs.values() for t in job.generated]

    def complete(self, *prompts: Sequence[int], reply: Sequence[int], **options: Any) -> Outcome:
        """Text completions; the outcome of the last one."""
        self.seen = len(self.engine.events)
        tickets = [
            self.engine.submit(
                Request(
                    prompt=as_tokens(list(each)),
                    predict=len(reply),
                    reply=as_tokens(list(reply)),
                    options=options or None,
                )
            )
            for each in prompts
        ]
        return self.outcomes(tickets)[-1]

    def outcomes(self, tickets: Sequence[Ticket]) -> list[Outcome]:
        self.engine.run()
        self.engine.check_integrity()
        return [self._outcome(self.engine.reply(each)) for each in tickets]

    def _outcome(self, reply: Reply | None) -> Outcome:
        assert reply is not None
        lost = sum(each.before - each.after for each in reply.losses)
        if reply.error is not None or reply.cached is None:
            return Outcome(reply.error or "", None)
        assert reply.equal - lost == reply.cached
        cold = self.oracle.logits(reply.prompt, reply.generated)
        return Outcome(int(reply.cached), bool((cold == reply.logits).all()))

    def events(self, kind: type[Any]) -> list[Any]:
        """Of the last group."""
        return [each for each in self.engine.events[self.seen :] if isinstance(each, kind)]

    @property
    def inserted(self) -> list[tuple[int, str]]:
        return [(each.length, each.type) for each in self.events(Insertion)]

    @property
    def unsound(self) -> list[tuple[int, int]]:
        """Key lengths and tokens folded into the recurrent state (else: rows), where wrong."""
        wrong = [each for each in self.events(Insertion) if not each.state_is_key]
        return [(each.length, len(next(iter(each.held.values())))) for each in wrong]

    @property
    def calls(self) -> list[tuple[int, int]]:
        return [(each.rows, each.columns) for each in self.events(ModelCalled)]

    @property
    def progress(self) -> list[tuple[int, int]]:
        return [(each.done, each.total) for each in self.events(PromptProgress)]

    @property
    def keys(self) -> dict[str, list[int]]:
        """Stored key lengths by queue, oldest first."""
        return self.engine.snapshot()["order"]

    @property
    def stored(self) -> list[int]:
        return sorted(each["n_tokens"] for each in self.engine.snapshot()["prompt_cache"])
