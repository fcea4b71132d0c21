"""A server to talk to in tests: ring arithmetic, forced replies, one request after the other."""

from typing import Any

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.model.presets import preset
from cachesim.play.session import SlotFiles
from cachesim.typed import there_is
from cachesim.units import as_tokens

VOCABULARY = 1 << 14
"""Worked examples number their tokens up to 8,999."""

SMALL = {"ctx_size": 2048, "cache_ram": 100}


def run(*parts: "int | range | list[int]") -> list[int]:
    """A prompt from runs and lists of numbers: `run(range(100), G, range(200, 210))`."""
    tokens: list[int] = []
    for part in parts:
        tokens += [part] if isinstance(part, int) else list(part)
    return tokens


class Play:
    """One server, and what it answered."""

    def __init__(
        self, profile: str, model: str = "dense", *, window: int = 0, arithmetic: str = "ring",
        drop: tuple[str, ...] = (), **options: Any,
    ) -> None:  # fmt: skip
        shape = {"window": window} if window else {}
        spec = preset(model, vocabulary=VOCABULARY, **shape)
        chosen = {**SMALL, **options}
        for name in drop:
            del chosen[name]
        self.store = SlotFiles()
        engine = Engine.create(
            profile,
            model=spec,
            options=chosen,
            arithmetic=arithmetic,  # type: ignore[arg-type]
            store=self.store,
        )
        assert isinstance(engine, LlamaCpp)
        self.engine = engine
        self.G: list[int] = []
        self.last: Reply | None = None
        self.ticket = Ticket(-1)
        self._fresh = 0

    def ask(self, prompt: list[int], predict: int = 1, **fields: Any) -> tuple[int, int]:
        """Send a prompt, run to the end; cached and processed counts."""
        reply = self.reply(prompt, predict, **fields)
        assert reply.error is None, reply.message
        assert reply.cached is not None
        assert reply.processed is not None
        return int(reply.cached), int(reply.processed)

    def reply(self, prompt: list[int], predict: int = 1, **fields: Any) -> Reply:
        """Send a prompt, run to the end; the whole reply."""
        forced = fields.pop("forced", True)
        if forced and "reply" not in fields:
            count = predict if predict > 0 else (1 if predict == 0 else 4096)
            self._fresh += 1
            fields["reply"] = as_tokens(
                [VOCABULARY - 1 - (self._fresh + k) % 7 for k in range(count)]
            )
        ticket = self.engine.submit(Request(prompt=as_tokens(prompt), predict=predict, **fields))
        self.engine.run()
        self.engine.check_integrity()
        reply = there_is(self.engine.reply(ticket))
        self.last, self.ticket = reply, ticket
        self.G = list(reply.generated[:-1])
        return reply

    def act(self, what: str, slot: int, name: str = "") -> Reply:
        engine = self.engine
        if what == "slot-save":
            ticket = engine.slot_save(slot, name)
        elif what == "slot-restore":
            ticket = engine.slot_restore(slot, name)
        else:
            ticket = engine.slot_erase(slot)
        engine.run()
        engine.check_integrity()
        return there_is(engine.reply(ticket))

    @property
    def snapshot(self) -> dict[str, Any]:
        return self.engine.snapshot()

    @property
    def slot(self) -> int:
        assert self.last is not None
        assert self.last.slot is not None
        return self.last.slot

    def tokens(self, slot: int = 0) -> int:
        return len(self.snapshot["slots"][slot]["tokens"])

    def checkpoints(self, slot: int = 0) -> list[int]:
        """n_tokens of a slot's checkpoints."""
        return [
            checkpoint["n_tokens"] for checkpoint in self.snapshot["slots"][slot]["checkpoints"]
        ]

    def ranges(self, slot: int = 0) -> list[tuple[int, int, int]]:
        """n_tokens, pos_min and pos_max of a slot's checkpoints."""
        return [
            (checkpoint["n_tokens"], checkpoint["pos_min"], checkpoint["pos_max"])
            for checkpoint in self.snapshot["slots"][slot]["checkpoints"]
        ]

    @property
    def ram(self) -> list[tuple[int, int]]:
        """The prompt cache: tokens and checkpoints of each entry."""
        return [(each["n_tokens"], each["checkpoints"]) for each in self.snapshot["prompt_cache"]]
