"""Workloads of coding agents, grown on a server: long prompts, many slots, a small prompt cache.

Slots are saved, restored and erased between requests; clients disconnect during a reply; and
while a prompt of more than a batch is read, other agents' requests arrive.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from cachesim.engines.chat import FIRST_WORD, VOCABULARY
from cachesim.prove.hunt.arrivals import READING
from cachesim.prove.llama_cpp.fitting import Abilities, Release, drafting
from cachesim.prove.llama_cpp.flags import Choices, draw_choices, draw_preset
from cachesim.prove.llama_cpp.gguf import text_of
from cachesim.prove.llama_cpp.workload import Outcome
from cachesim.scenario.format import Scenario, Step, Turn
from cachesim.units import Tokens, as_tokens
from conformance.real.llama_cpp.workloads import ABANDONED, Server, Setting, slot_action
from conformance.real.prompts import Agents, Conversation, Message, Row, Sizes

CONTEXT: Final = 16_384
SHARE: Final = 8_192
"""Tokens that each slot has at least."""

REQUESTS: Final = (8, 18)

TOKENS_MEANWHILE: Final = 2000
"""Tokens of a reply until a client disconnects; one slot of a pool has fewer cells."""

REPLIES: Final = (1, 2, 4, 8, 20, 40)


def draw_agents(
    seed: int, number: int, *, release: Release, presets: Sequence[str] = ()
) -> Setting:
    """The model and the flags of one workload, and the chance that its steps are drawn with."""
    rng = Random(f"agents {release} {seed} {number}")
    able = Abilities(release)
    preset, window = draw_preset(rng, abilities=able, presets=presets)
    return Setting(
        name=f"{preset}-agents-{seed}-{number}",
        release=release,
        preset=preset,
        window=window,
        options=_options(rng, able, preset),
        rng=rng,
    )


CHOICES: Final[Choices] = (
    ("ctx_checkpoints", (0, 2, 4, 32), 0.3),
    ("checkpoint_min_step", (0, 64, 1024), 0.3),
    ("slot_prompt_similarity", (0.0, 0.5), 0.3),
    ("cache_idle_slots", (False,), 0.15),
    ("cache_reuse", (32, 256), 0.2),
    ("ubatch_size", (128, 256), 0.2),
    ("batch_size", (512,), 0.2),
    ("context_shift", (True,), 0.1),
)


def _options(rng: Random, able: Abilities, preset: str) -> dict[str, Any]:
    """Few flags, as on real servers: slots, one pool, the prompt cache's size."""
    options: dict[str, Any] = {
        "parallel": rng.choice((1, 1, 2, 4, 4)),
        "ctx_size": rng.choice((SHARE, CONTEXT, CONTEXT)),
    }
    if options["parallel"] == 1:
        options["ctx_size"] = rng.choice((SHARE, 2 * SHARE))
    if options["parallel"] > 1 and rng.random() < 0.6:
        options["kv_unified"] = True
    elif options["ctx_size"] < SHARE * options["parallel"]:
        options["ctx_size"] = SHARE * options["parallel"]
    if rng.random() < 0.6:
        options["cache_ram"] = rng.choice((0, 1, 2, 4, 8, 16))
    options |= draw_choices(rng, able, CHOICES)
    if preset == "hybrid-mtp":
        options["spec_type"] = "draft-mtp"
    return options


def grow_agents(setting: Setting, server: Server) -> tuple[Scenario, tuple[Outcome, ...]]:
    """Run agents' requests; the resulting workload, and the server's answers."""
    session = _Session(setting, server)
    for _ in range(setting.rng.randint(*REQUESTS)):
        if server.lost:
            break
        session.go_on()
    return setting.workload(session.steps), tuple(session.outcomes)


class _Session:
    """A few users' agents on one server."""

    def __init__(self, setting: Setting, server: Server) -> None:
        self.steps: list[Step] = []
        self.outcomes: list[Outcome] = []
        self._rng, self._options, self._server = setting.rng, setting.options, server
        self._slots: int = setting.options["parallel"]
        self._context = setting.context
        share = self._rng.choice((1.0, 0.6, 0.4)) if self._slots > 1 else 1.0
        longest = int(share * setting.context) - max(REPLIES) - 2
        users = range(self._rng.choice((1, 1, 2, 3)))
        self._users = [Agents(self._rng, self._words, Sizes.within(longest)) for _ in users]
        self._files: list[str] = []
        self._is_chat = self._rng.random() < 0.3  # all requests are chats

    def go_on(self) -> None:
        """Ask for the next turn of a user's agents, now and then after a slot action."""
        rng = self._rng
        if self.steps and rng.random() < 0.12:
            self._send(slot_action(rng, self._slots, self._files, saves=0.4))
        user, predict = rng.choice(self._users), rng.choice(REPLIES)
        conversations = user.next()
        steps = [self._step(conversation, predict) for conversation in conversations]
        together = sum(len(conversation.tokens) + predict for conversation in conversations)
        if len(steps) == 1:
            steps = [self._placed(steps[0])]
        elif self._slots == 1 or self._is_chat or together > self._context or rng.random() < 0.4:
            user.learn([self._send(step)[0] for step in steps])
            return
        first, *others = steps
        group = [first, *(replace(other, with_previous=True) for other in others)]
        plain = not (group[0].leaves or self._is_chat)
        usual = "batch_size" not in self._options and plain
        fits = together + 2 * READING[1] < self._context
        if (usual and fits and len(group) < self._slots) and rng.random() < 0.25:
            late = replace(first, slot=-1, with_previous=True, turns=1)
            user.learn(self._send(self._reading(), late, *group[1:])[1:])
        else:
            user.learn(self._send(*group))

    def _send(self, *group: Step) -> list[Tokens]:
        if self._server.lost:
            return [() for _ in group]
        named = [
            replace(step, name=f"r{len(self.steps) + number}") for number, step in enumerate(group)
        ]
        answers = self._server.send(named)
        self.steps += named
        self.outcomes += answers
        return [answer.reply for answer in answers]

    def _step(self, conversation: Conversation, predict: int) -> Step:
        if not self._is_chat:
            return Step(name="", prompt=as_tokens(conversation.tokens), predict=predict)
        system = (Message("system", conversation.head[0]),) if conversation.head else ()
        messages = tuple(
            Turn(role=each.role, content=text_of(each.tokens))
            for each in (*system, *conversation.messages)
        )
        tools = tuple(text_of(each) for each in conversation.head[1:])
        options = {"tools": tools} if tools else {}
        return Step(name="", messages=messages, predict=predict, options=options)

    def _placed(self, step: Step) -> Step:
        """Sometimes in a slot that the client names; sometimes the client will not wait."""
        rng, options = self._rng, self._options
        if rng.random() < 0.1:
            step = replace(step, slot=rng.randrange(self._slots))
        shifts = options.get("context_shift", False)
        waits = shifts or drafting(options) or len(step.ids) + TOKENS_MEANWHILE > self._context
        if waits or self._is_chat or rng.random() > 0.1:
            return step
        slot = max(0, step.slot)  # of which is known afterwards what it holds
        leaves = "reading" if rng.random() < 0.6 else "replying"
        return replace(step, slot=slot, predict=ABANDONED, leaves=leaves)

    def _reading(self) -> Step:
        head = self._rng.choice(self._users).head if self._rng.random() < 0.5 else ()
        head = head[: READING[1]]
        prompt = as_tokens([*head, *self._words(self._rng.randint(*READING))])
        return Step(name="", prompt=prompt, predict=1)

    def _words(self, count: int) -> Row:
        return tuple(self._rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(count))
