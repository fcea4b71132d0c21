"""Random workloads from a seed: conversation trees, run as they grow.

A chat client's next prompt holds the server's last reply, so a workload cannot be written before
it is run: `grow` asks a server step by step and gives the finished workload with its outcomes.
The same seed on the same server gives the same workload.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Protocol

from cachesim.engines.chat import FIRST_WORD
from cachesim.engines.llamacpp.options import CONTEXT_STEP, TRAINED_CONTEXT
from cachesim.play.session import AS_TEXT
from cachesim.prove.llama_cpp.fitting import Abilities, Release, drafting
from cachesim.prove.llama_cpp.flags import NO_FLAGS, draw_more, draw_options, draw_preset
from cachesim.prove.llama_cpp.gguf import text_of
from cachesim.prove.llama_cpp.workload import Outcome, workload
from cachesim.scenario import limits
from cachesim.scenario.format import Scenario, Step
from cachesim.units import Token, Tokens, as_tokens
from conformance.real.llama_cpp.chats import ChatTree

ABANDONED: Final = limits.PREDICT
"""Tokens asked for by a client that will not wait for them."""

OFTEN: Final[Mapping[str, float]] = {
    "restart": 0.02,
    "sleep": 0.15,
    "embed": 0.3,
    "infill": 0.03,
    "cancel": 0.04,
    "several": 0.08,
}
"""Frequency of each kind of step on servers that support it."""

TOO_LONG: Final = 0.1
"""Frequency of several completions for a prompt longer than the context."""


@dataclass(slots=True)
class Incidents:
    """Random prompts and calls for one server."""

    rng: Random
    options: Mapping[str, Any]
    too_long: int  # tokens that fit no slot
    prompt: Callable[[], Tokens]  # the next prompt of a conversation
    fresh: Callable[[int], Tokens]  # `n` unused tokens

    def draw(self, number: int) -> tuple[Step, ...]:
        """A group of steps, or none where nothing happens now."""
        for kind, often in OFTEN.items():
            if number and self._can(kind) and self.rng.random() < often:
                return self._group(kind, f"r{number}", number)
        return ()

    def _can(self, kind: str) -> bool:
        options = self.options
        match kind:
            case "sleep":
                return int(options.get("sleep_idle_seconds", -1)) > 0
            case "embed":
                return bool(options.get("embedding"))
            case "cancel":  # one slot, of which is known afterwards what it holds
                shifts = options.get("context_shift", False)
                return options["parallel"] == 1 and not shifts and not drafting(options)
            case "several":
                return options["parallel"] > 1 and not drafting(options)
            case _:
                return True

    def _group(self, kind: str, name: str, number: int) -> tuple[Step, ...]:
        rng, options = self.rng, self.options
        match kind:
            case "restart":
                return (Step(name=name, do="restart"),)
            case "sleep":
                return (Step(name=name, do="sleep"),)
            case "embed":
                return self._embedded(number)
            case "infill":
                return (
                    Step(
                        name=name,
                        prompt=self.prompt(),
                        suffix=self.fresh(self.rng.choice((0, 3, 10, 200))) or None,
                        predict=self.rng.choice((1, 4)),
                        options={"endpoint": "infill"},
                    ),
                )
            case "cancel":
                prompt = self.prompt()
                return (Step(name=name, prompt=prompt, predict=ABANDONED, leaves="replying"),)
            case _:
                long = rng.random() < TOO_LONG
                prompt = self.fresh(self.too_long + rng.randint(0, 9)) if long else self.prompt()
                return (
                    Step(
                        name=name,
                        prompt=prompt,
                        predict=rng.choice((1, 4, 9)),
                        completions=rng.randint(2, options["parallel"]),
                    ),
                )

    def _embedded(self, number: int) -> tuple[Step, ...]:
        rng = self.rng
        ranks = self.options.get("pooling") == "rank"
        endpoint = "rerank" if ranks else "embedding"
        query = self.prompt()[: rng.choice((1, 8, 40))] if ranks else ()
        return tuple(
            Step(
                name=f"r{number + later}",
                prompt=query + self._document(),
                predict=0,
                query=len(query),
                options={"endpoint": endpoint},
                with_previous=later > 0,
            )
            for later in range(rng.choice((1, 1, 2, 3)))
        )

    def _document(self) -> Tokens:
        if self.rng.random() < 0.5:
            return self.prompt()
        return self.fresh(self.rng.choice((3, 30, 200)))


LEAVING: Final = 0.06
"""Frequency of clients that leave, in workloads for a log."""

SESSION: Final = 70
MANY: Final = 0.03
"""Frequency of long sessions."""

BARE: Final = 10
"""Inverse frequency of workloads on a server with no flag but its model."""

LONGEST: Final = 4096
"""Of a chat, however large the context."""

PREDICTIONS: Final = (0, 1, 1, 2, 2, 4, 4, 8, 8, 20, 20, 40)


class Server(Protocol):
    """A running server, real or simulated."""

    @property
    def lost(self) -> bool:
        """True if its state is undefined: no further request is sent."""

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        """Send steps that go out together; one outcome each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Model, flags and random numbers of a workload, before any request."""

    name: str
    release: Release
    preset: str
    window: int
    options: dict[str, Any]
    rng: Random
    logged: bool = False  # for a log: chats share instructions, clients leave; no slot actions
    everything: bool = False  # that users do, and not conversations alone
    bare: bool = False  # the server is started with its model and no flag; `options` are its own

    @property
    def flags(self) -> dict[str, Any]:
        return dict(NO_FLAGS) if self.bare else self.options

    @property
    def context(self) -> int:
        """Roughly the longest prompt that one slot takes."""
        whole, slots = self.options["ctx_size"] or TRAINED_CONTEXT, self.options["parallel"]
        return int(whole if self.options.get("kv_unified") else max(256, whole // slots))

    def workload(self, steps: Sequence[Step] = ()) -> Scenario:
        return workload(
            name=self.name,
            release=self.release,
            preset=self.preset,
            window=self.window,
            options=self.flags,
            steps=steps,
        )

    @property
    def too_long(self) -> int:
        """Length of a prompt that fits no slot.

        The server rounds a slot's share of the trained context up; a prompt just within it would
        be read for minutes.
        """
        return self.context if self.options["ctx_size"] else self.context + CONTEXT_STEP


def draw_setting(
    seed: int,
    number: int,
    *,
    release: Release,
    presets: Sequence[str] = (),
    everything: bool = False,
) -> Setting:
    """The model and the flags of one workload, and the chance that its steps are drawn with."""
    rng = Random(f"{release} {seed} {number}")
    able = Abilities(release)
    preset, window = draw_preset(rng, abilities=able, presets=presets)
    options = draw_options(rng, abilities=able, preset=preset)
    bare = everything and number % BARE == BARE - 1
    if bare:
        options = {"parallel": 4, "kv_unified": True, "ctx_size": 0}
    elif everything:
        options |= draw_more(rng, abilities=able, preset=preset)
    return Setting(
        name=f"{preset}-{seed}-{number}",
        release=release,
        preset=preset,
        window=window,
        options=options,
        rng=rng,
        everything=everything,
        bare=bare,
    )


def grow(setting: Setting, server: Server) -> tuple[Scenario, tuple[Outcome, ...]]:
    """Run a random conversation tree; the resulting workload, and the server's answers."""
    tree = _Tree(setting)
    steps: list[Step] = []
    outcomes: list[Outcome] = []
    wanted = setting.rng.randint(4, 12)
    if setting.everything and setting.rng.random() < MANY:
        wanted = SESSION
    while len(steps) < wanted + tree.in_vain and not server.lost:
        group = tree.next_group(len(steps))
        answers = server.send(group)
        tree.learn(group, answers)
        steps += group
        outcomes += answers
    return setting.workload(steps), tuple(outcomes)


def slot_action(rng: Random, slots: int, files: list[str], *, saves: float, name: str = "") -> Step:
    """A slot erased, saved to a further file, or restored from one; `saves`: how often saved."""
    slot = rng.randrange(slots)
    if rng.random() < 0.15:
        return Step(name=name, do="slot-erase", slot=slot)
    if not files or rng.random() < saves:
        files.append(f"f{len(files)}")
        return Step(name=name, do="slot-save", slot=slot, file=files[-1])
    return Step(name=name, do="slot-restore", slot=slot, file=rng.choice(files))


class _Tree:
    """The conversations so far, and ways to continue them."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rng = setting.rng
        self._turns: list[tuple[Tokens, Tokens]] = []  # prompt and reply, oldest first
        self._files: list[str] = []
        # Few different words make prompts meet by accident, which similarity and chunks turn on.
        self._words = self._rng.choice((2, 4, 30, 240, 240, 240, 240, 240))
        self._chats = ChatTree(
            self._rng,
            self._words,
            min(setting.context, LONGEST),
            share=setting.logged or setting.everything,
            lines=setting.everything,
        )
        self._speaks = self._rng.random() < 0.2  # all prompts are chats
        self.in_vain = 0  # steps of runs that the server refuses, or answers with nothing
        self._run = 0  # how many of the present run are still to come
        self._incidents = Incidents(
            self._rng, setting.options, setting.too_long, self._prompt, self._fresh
        )

    def next_group(self, number: int) -> tuple[Step, ...]:
        """A step, or several that go out together."""
        acts = not self._setting.logged
        if acts and (self._run or self._rng.random() < 0.06):
            return (self._in_vain(number),)
        if acts and self._turns and self._rng.random() < (0.12 if self._files else 0.05):
            slots = self._setting.options["parallel"]
            return (slot_action(self._rng, slots, self._files, saves=0.3, name=f"r{number}"),)
        if self._setting.everything and (group := self._incidents.draw(number)):
            return group
        rng = self._rng
        slots = self._setting.options["parallel"]
        first = Step(
            name=f"r{number}",
            prompt=None if self._speaks else self._prompt(),
            messages=self._chats.next() if self._speaks else (),
            predict=self._predict(),
            slot=rng.randrange(slots) if rng.random() < 0.12 else -1,
            cache_prompt=rng.random() > 0.05,
            options=self._request_options() | self._chat_options(),
            parts=self._setting.everything and self._rng.random() < 0.1,
        )
        if self._setting.logged and self._rng.random() < LEAVING:
            return (replace(first, leaves="replying", predict=ABANDONED),)
        if slots == 1 or self._speaks or self._rng.random() > 0.15:
            return (first,)
        first = replace(first, slot=-1)
        others = (
            replace(
                first, name=f"r{number + later}", prompt=self._short_prompt(), with_previous=True
            )
            for later in range(1, self._rng.randint(2, slots + 1))
        )
        return (replace(first, prompt=self._short_prompt()), *others)

    def _short_prompt(self) -> Tokens:
        """A prompt that leaves room for the others of its call, or none at all."""
        most = self._setting.context // (self._setting.options["parallel"] + 2)
        return self._prompt()[: max(1, most)] if self._rng.random() < 0.95 else ()

    def learn(self, group: Sequence[Step], outcomes: Sequence[Outcome]) -> None:
        for step, outcome in zip(group, outcomes, strict=True):
            answered = outcome.error is None or step.leaves
            completes = step.options.get("endpoint", "completion") == "completion"
            if step.do != "complete" or not answered or not completes:
                continue
            if step.messages:
                self._chats.learn(step.messages, outcome.reply)
            elif step.ids:
                self._turns.append((as_tokens(step.ids), outcome.reply))

    def _in_vain(self, number: int) -> Step:
        rng = self._rng
        self._run = self._run - 1 if self._run else rng.choice((0, 1, 3, 4, 9, 12))
        self.in_vain += 1
        slots = self._setting.options["parallel"]
        slot = rng.randrange(slots) if rng.random() < 0.3 else -1
        step = Step(name=f"r{number}", prompt=(), predict=1, slot=slot)
        match rng.choice(("long", "long", "known and long", "empty", "text", "chat")):
            case "long":
                length = self._setting.too_long + rng.randint(0, 40)
                return replace(step, prompt=self._fresh(length))
            case "known and long":
                known = self._turn()[0] if self._turns else ()
                return replace(step, prompt=known + self._fresh(self._setting.too_long))
            case "text":
                return replace(step, options={AS_TEXT: True})
            case "chat":
                return replace(step, prompt=None, messages=self._chats.refused())
            case _:
                return step

    def _chat_options(self) -> dict[str, Any]:
        rng, fields = self._rng, dict[str, Any]()
        if not (self._setting.everything and self._speaks):
            return fields
        if rng.random() < 0.1:
            fields["tools"] = tuple(text_of(self._fresh(3)) for _ in range(rng.choice((1, 2))))
        if rng.random() < 0.06:
            fields["add_generation_prompt"] = False
        return fields

    def _predict(self) -> int:
        rng = self._rng
        if self._setting.context <= 256 and rng.random() < 0.1:
            # Without a shift, -1 ends where the context does; with one it never would.
            return rng.choice((100, 300)) if self._setting.options.get("context_shift") else -1
        return rng.choice(PREDICTIONS)

    def _request_options(self) -> dict[str, Any]:
        rng = self._rng
        if self._setting.logged:
            return {}
        fields: dict[str, Any] = {AS_TEXT: True} if rng.random() < 0.03 else {}
        if self._setting.everything and rng.random() < 0.01:
            fields["n_predict"] = rng.choice((-2, -7))
        if self._setting.options.get("cache_prompt") is False and rng.random() < 0.4:
            fields["cache_prompt"] = True
        if rng.random() < 0.04:
            fields["n_cache_reuse"] = rng.choice((0, 1, 4, 16))
        if self._setting.options.get("context_shift") and rng.random() < 0.1:
            fields |= {"n_keep": rng.choice((-1, 0, 10)), "n_discard": rng.choice((0, 7, 100))}
        return fields

    def _prompt(self) -> Tokens:
        ways: list[tuple[Callable[[], Tokens], int]] = [(self._new, 3 if self._turns else 1)]
        if self._turns:
            ways += [
                (self._extended, 8),
                (self._extended_without_reply, 2),
                (self._again, 3),
                (self._with_reply, 2),
                (self._edited, 4),
                (self._cut_out, 2),
                (self._truncated, 4),
                (self._doubled, 1),
            ]
        way = self._rng.choices([each for each, _ in ways], [weight for _, weight in ways])[0]
        prompt = way()
        longest = self._setting.context - 1
        if len(prompt) > longest and self._rng.random() < 0.8:
            prompt = prompt[: self._rng.randint(longest // 2, longest)]
        return prompt or self._fresh(1)

    def _fresh(self, count: int) -> Tokens:
        rng = self._rng
        return tuple(Token(FIRST_WORD + rng.randrange(self._words)) for _ in range(count))

    def _turn(self) -> tuple[Tokens, Tokens]:
        rng = self._rng
        return self._turns[-1] if rng.random() < 0.55 else rng.choice(self._turns)

    def _new(self) -> Tokens:
        rng = self._rng
        ubatch = self._setting.options.get("ubatch_size", 512)
        edges = (4, 5, 8, 63, 64, 65, 68, ubatch, ubatch + 3, ubatch + 4, ubatch + 5, 2 * ubatch)
        return self._fresh(
            rng.choice(
                (
                    rng.randint(1, 6),
                    rng.randint(5, 30),
                    rng.randint(20, 120),
                    rng.randint(60, 320),
                    rng.choice(edges),
                    rng.randint(1, min(600, self._setting.context + 5)),
                )
            )
        )

    def _extended(self) -> Tokens:
        prompt, reply = self._turn()
        return prompt + reply + self._fresh(self._rng.choice((1, 2, 5, 10, 30, 80)))

    def _extended_without_reply(self) -> Tokens:
        return self._turn()[0] + self._fresh(self._rng.choice((1, 3, 10, 30, 80)))

    def _again(self) -> Tokens:
        return self._turn()[0]

    def _with_reply(self) -> Tokens:
        prompt, reply = self._turn()
        return prompt + reply[: len(reply) - self._rng.randint(0, 2)]

    def _edited(self) -> Tokens:
        whole = sum(self._turn(), ())
        at = self._rng.randrange(len(whole))
        changed = whole[:at] + self._fresh(self._rng.choice((1, 1, 3, 10)))
        return changed + (whole[len(changed) :] if self._rng.random() < 0.5 else self._fresh(20))

    def _cut_out(self) -> Tokens:
        whole = sum(self._turn(), ())
        at = self._rng.randrange(len(whole))
        return whole[:at] + whole[at + self._rng.choice((1, 5, 20, 64)) :]

    def _truncated(self) -> Tokens:
        prompt, reply = self._turn()
        whole = prompt + reply
        ubatch = self._setting.options.get("ubatch_size", 512)
        ends = (
            len(prompt) - 4,
            len(prompt) - 4 - ubatch,
            len(prompt) - 3,
            len(prompt) - 1,
            self._rng.randint(1, len(whole)),
            self._rng.randint(1, len(whole)),
            self._rng.randint(1, len(whole)),
        )
        end = self._rng.choice([each for each in ends if each > 0] or [len(whole)])
        tail = self._fresh(self._rng.choice((1, 4, 30))) if self._rng.random() < 0.4 else ()
        return whole[:end] + tail

    def _doubled(self) -> Tokens:
        prompt, reply = self._turn()
        return prompt + reply + prompt
