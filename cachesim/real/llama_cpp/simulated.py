"""The simulator behind the same door as the real server, and with the real replies forced."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.events import Event
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.profile import Profile
from cachesim.errors import OptionError, UpstreamAbort, UpstreamEndless
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.real.llama_cpp.abilities import nearest_release
from cachesim.real.llama_cpp.calls import AS_TEXT
from cachesim.real.llama_cpp.flags import drafting
from cachesim.real.llama_cpp.trial import Trial
from cachesim.real.llama_cpp.workload import CANCELLED, CRASH, ENDLESS, Outcome, Step, Workload
from cachesim.scenario.abilities import Adapting, Reading, Restarting, SlotActions
from cachesim.scenario.session import SlotFiles
from cachesim.units import Tokens

SPARE: Final = 2
"""How many tokens more than the real reply are forced: a server that goes on too long shows."""


MANY: Final = 1000
"""Tokens asked for by a client that will not wait for them."""


def spec_of(name: str, window: int = 0) -> ModelSpec:
    """The model of a workload; window 0 is the preset's own."""
    return preset(name, window=window) if window else preset(name)


@dataclass(slots=True)
class SimulatedServer:
    """An engine that answers groups of steps, with the real server's words where they are known."""

    engine: Engine
    lost: bool = False
    seen: int = 0
    events: list[tuple[Event, ...]] = field(default_factory=list)  # per group
    replies: tuple[Reply | None, ...] = ()  # of the last group of completions

    @classmethod
    def of(
        cls,
        workload: Workload,
        arithmetic: ArithmeticName | None = None,
        *,
        trial: Trial | None = None,
    ) -> "SimulatedServer":
        """A fresh engine with a workload's model and flags.

        What a companion drafts depends on the weights: where the real drafts are not known, only
        the real arithmetic comes close.
        """
        drafts = drafting(workload.options)
        return cls(
            Engine.create(
                Profile(FAMILY.name, nearest_release(workload.release)),
                model=spec_of(workload.preset, workload.window),
                options=(trial.asked(workload) if trial else workload).options,
                arithmetic=arithmetic or ("float" if drafts else "ring"),
                store=SlotFiles(),
                family=trial.family(workload.release) if trial else None,
            )
        )

    def ask(
        self, group: Sequence[Step], real: Sequence[Outcome] | None = None
    ) -> tuple[Outcome, ...]:
        """Send steps that go out together; one outcome each. What is real is said again."""
        self.replies = ()
        try:
            outcomes = self._ask(group, real)
        except UpstreamAbort as abort:
            self.lost = True
            error = ENDLESS if isinstance(abort, UpstreamEndless) else CRASH
            outcomes = tuple(Outcome(error=error) for _ in group)
        self.events.append(tuple(self.engine.events[self.seen :]))
        self.seen = len(self.engine.events)
        return outcomes

    def _ask(self, group: Sequence[Step], real: Sequence[Outcome] | None) -> tuple[Outcome, ...]:
        if group[0].do != "complete":
            return (self._slot_action(group[0]),)
        if group[0].abandoned and real:
            return (self._given_up(group[0], real[0]),)
        tickets = []
        for index, step in enumerate(group):
            for _ in range(step.turns):
                self.engine.step()
            request = self._request(step, real[index] if real else None, nested=len(group) > 1)
            tickets.append(self.engine.submit(request))
        self.engine.run()
        self.replies = tuple(self.engine.reply(ticket) for ticket in tickets)
        return tuple(self._outcome(ticket) for ticket in tickets)

    def _given_up(self, step: Step, real: Outcome) -> Outcome:
        """Generate as far as the real server did: the last token is never in the slot.

        Where the client was gone before that, the prompt is read as far as it was.
        """
        if real.processed is not None:
            return self._gone_early(step, real.processed)
        said = real.reply + real.reply[-1:]
        reply = said or step.prompt[-1:]
        request = Request(prompt=step.prompt, predict=len(reply), reply=reply, slot=step.slot)
        self.engine.submit(request)
        self.engine.run()
        return Outcome(reply=real.reply, slot=None, truncated=None, error=CANCELLED)

    def _gone_early(self, step: Step, until: int) -> Outcome:
        """Turn by turn until the slot holds so many tokens; then the client is gone."""
        engine = self.engine
        if not isinstance(engine, Reading):
            msg = f"{engine.profile} does not tell how far a prompt is read"
            raise OptionError(msg)
        ticket = engine.submit(Request(prompt=step.prompt, predict=MANY, slot=step.slot))
        while engine.step() and engine.tokens_held_for(ticket) < until:
            pass
        held = engine.tokens_held_for(ticket)
        engine.cancel(ticket)
        engine.run()
        reached = held == until
        return Outcome(slot=None, truncated=None, error=CANCELLED if reached else f"read {held}")

    def _slot_action(self, step: Step) -> Outcome:
        engine = self.engine
        if step.do in {"restart", "sleep"} and isinstance(engine, Restarting):
            (engine.restart if step.do == "restart" else engine.sleep)()
            return Outcome(slot=step.slot)
        if step.do == "set-lora" and isinstance(engine, Adapting):
            engine.set_lora(step.options.get("lora", ()))
            engine.run()
            return Outcome(slot=step.slot)
        if not isinstance(engine, SlotActions):
            msg = f"{engine.profile} cannot {step.do.replace('-', ' ')}s"
            raise OptionError(msg)
        if step.do == "slot-save":
            ticket = engine.slot_save(step.slot, step.file)
        elif step.do == "slot-restore":
            ticket = engine.slot_restore(step.slot, step.file)
        else:
            ticket = engine.slot_erase(step.slot)
        engine.run()
        reply = engine.reply(ticket)
        return Outcome(slot=step.slot, error="no_answer" if reply is None else reply.error)

    def _outcome(self, ticket: Ticket) -> Outcome:
        reply = self.engine.reply(ticket)
        if reply is None:
            return Outcome(error="no_answer")
        return Outcome(
            cached=reply.cached,
            processed=reply.processed,
            reply=reply.generated,
            slot=reply.slot,
            truncated=reply.truncated,
            error=reply.error,
        )

    def _request(self, step: Step, real: Outcome | None, *, nested: bool) -> Request:
        options = dict(step.options)
        if nested and not step.prompt:
            options[AS_TEXT] = True  # an empty list among other prompts is let through
        if step.suffix:
            options["input_suffix"] = step.suffix
        return Request(
            prompt=step.prompt,
            predict=step.predict,
            reply=_forced(real),
            drafts=None if real is None else real.drafts,
            slot=step.slot,
            cache_prompt=step.cache_prompt,
            options=options or None,
            messages=step.messages,
            completions=step.completions,
        )


def _forced(real: Outcome | None) -> Tokens | None:
    """The real reply and a little more; anything may be said where a refusal hides it."""
    if real is None or real.error is not None:
        return None
    spoken = real.reply + swallowed(real)
    return spoken + spoken[-1:] * SPARE


def swallowed(real: Outcome) -> Tokens:
    """Tokens that were accepted but never sent, because the context ended within their draft.

    reply  [ t | draft 0 accepted ... | draft 1: sent )[ accepted, swallowed )
    """
    at, accepted = 1, 0
    for draft in real.drafts or ():
        known = real.reply[at:]
        pairs = zip(draft, known, strict=False)
        count = next((n for n, (said, sent) in enumerate(pairs) if said != sent), None)
        if count is None:
            count = min(len(draft), len(known))
            if count == len(known):
                return draft[count : max(count, real.accepted - accepted)]
        accepted += count
        at += count + 1
    return ()
