"""A Hypothesis state machine over any engine: the operations of a client.

The oracle sits inside the rule that yields logits, so that a failing program ends with the request
whose answer was wrong.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cachesim.engines import Engine, Profile, Request
from cachesim.errors import InputError, UpstreamAbort
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.play.loop import Loop
from cachesim.play.session import SlotActions, SlotFiles
from cachesim.testing.workloads import token_lists
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge

FIRST = 265
"""Tokens 0 and 1 of the strategies are the first plain words of the toy vocabulary."""


class CacheMachine(RuleBasedStateMachine):
    """Client operations: request, extend, edit, regenerate, branch, truncate, cancel, save,
    restore; answers stay cold.

    Derive from it and set what is to be tested:

        class Mine(CacheMachine):
            profile = "llama.cpp@b11549+erase-equal"
            model = "hybrid"
            options = {"parallel": 2}

        TestMine = Mine.TestCase
    """

    profile: ClassVar[str] = "llama.cpp@b11549"
    model: ClassVar[str | ModelSpec] = "hybrid"
    options: ClassVar[Mapping[str, Any]] = {}
    arithmetic: ClassVar[ArithmeticName] = "ring"
    by_design_is_right: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Tokens] = []
        self.empty = False  # what was saved

    @initialize()
    def start(self) -> None:
        """A fresh server."""
        self.saved = False
        spec = preset(self.model) if isinstance(self.model, str) else self.model
        network = build(spec, self.arithmetic)
        self.engine = Engine.create(
            Profile.parse(self.profile),
            model=network,
            options=dict(self.options),
            store=SlotFiles(),
        )
        self.loop = Loop(self.engine)
        self.oracle = Oracle(network)
        self.low = FIRST if spec.vocabulary > FIRST + 1 else 0

    def send(self, prompt: Tokens, predict: int = 2) -> None:
        """Send a request; its answer must be the uncached answer."""
        reply = self.loop.answer(Request(prompt=prompt, predict=predict))
        self.engine.check_integrity()
        if reply is None or reply.error is not None:
            return
        self.turns.append(prompt + reply.generated)
        verdict = judge(reply, self.oracle)
        right = {"same", "by-design"} if self.by_design_is_right else {"same"}
        if verdict is not None and verdict.answer not in right:
            msg = (
                f"{verdict.answer}: {reply.cached} of {len(prompt)} tokens cached, "
                f"logits off by {verdict.max_difference:.3g}"
            )
            raise AssertionError(msg)

    def words(self, tokens: Tokens) -> Tokens:
        """Tokens of the strategies as words of the model's vocabulary."""
        return as_tokens([self.low + token for token in tokens])

    @rule(tokens=token_lists(max_size=12))
    def request(self, tokens: Tokens) -> None:
        """Send a new prompt."""
        self.send(self.words(tokens))

    @precondition(lambda self: self.turns)
    @rule(tokens=token_lists(max_size=6), back=st.integers(0, 3))
    def extend(self, tokens: Tokens, back: int) -> None:
        """Extend an earlier turn: the last one, or a branch of an older one."""
        self.send(self.turns[-1 - back % len(self.turns)] + self.words(tokens))

    @precondition(lambda self: self.turns)
    @rule(back=st.integers(0, 3), drop=st.integers(1, 4))
    def regenerate(self, back: int, drop: int) -> None:
        """Send the same prompt again, with or without its last token."""
        turn = self.turns[-1 - back % len(self.turns)]
        self.send(turn[: max(1, len(turn) - drop)])

    @precondition(lambda self: self.turns)
    @rule(tokens=token_lists(max_size=6), back=st.integers(0, 3), keep=st.integers(1, 12))
    def edit(self, tokens: Tokens, back: int, keep: int) -> None:
        """Send an earlier turn up to some token, then other tokens."""
        turn = self.turns[-1 - back % len(self.turns)]
        self.send(turn[:keep] + self.words(tokens))

    @precondition(lambda self: self.turns)
    @rule(keep=st.integers(1, 12))
    def truncate(self, keep: int) -> None:
        """Send a prefix of the last turn."""
        self.send(self.turns[-1][:keep])

    @rule(tokens=token_lists(min_size=1, max_size=12), turns=st.integers(1, 3))
    def cancel(self, tokens: Tokens, turns: int) -> None:
        """Cancel a request while it is processed."""
        ticket = self.engine.submit(Request(prompt=self.words(tokens), predict=8))
        for _ in range(turns):
            self.loop.turn()
        self.engine.cancel(ticket)
        self.loop.drain()

    @precondition(lambda self: isinstance(self.engine, SlotActions))
    @rule()
    def save(self) -> None:
        """Save slot 0 to a file."""
        if isinstance(self.engine, SlotActions):
            self.engine.slot_save(0, "machine")
            self.loop.drain()
            self.saved = True
            self.empty = not self.engine.snapshot()["slots"][0]["tokens"]

    @precondition(lambda self: self.saved)
    @rule()
    def restore(self) -> None:
        """Restore slot 0."""
        try:
            if isinstance(self.engine, SlotActions):
                self.engine.slot_restore(0, "machine")
            self.loop.drain()
        except InputError:
            self.saved = False
        except UpstreamAbort:
            if not self.empty:
                raise
            self.start()  # ik_llama.cpp ends at the file of an empty slot, right states or not
