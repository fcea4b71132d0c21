"""Workloads of llama.cpp in which a request arrives while a prompt of more than a batch is read."""

from collections.abc import Sequence
from random import Random
from typing import Final

from cachesim.engines.chat import FIRST_WORD, VOCABULARY
from cachesim.prove.llama_cpp.fitting import Abilities, Release
from cachesim.prove.llama_cpp.flags import draw_preset
from cachesim.prove.llama_cpp.workload import workload
from cachesim.scenario.format import Scenario, Step
from cachesim.units import Tokens, as_tokens

ROOM: Final = 32_768


READING: Final = (2_100, 4_000)
"""Tokens of the long prompt that no cache knows: more than a batch of 2,048."""


EARLIER: Final = (50, 800, 2_500, 3_000, 4_500)
"""Lengths of the earlier conversations: shorter and longer than the prefilled prompt."""


def draw_arrival(
    seed: int, number: int, *, release: Release, presets: Sequence[str] = ()
) -> Scenario:
    """Some conversations; a long prompt, and a request that arrives meanwhile; one more."""
    rng = Random(f"arrival {release} {seed} {number}")
    able = Abilities(release)
    preset, window = draw_preset(rng, abilities=able, presets=presets)
    options = {"parallel": rng.choice((1, 1, 2, 3)), "ctx_size": ROOM}
    if rng.random() < 0.3:
        options["kv_unified"] = True
    if rng.random() < 0.2:
        options["cache_ram"] = 0
    prompts = _Prompts(rng)
    steps = [prompts.step(f"r{index}") for index in range(rng.randint(1, 3))]
    steps.append(prompts.reading(rng.choice((-1, -1, 0))))
    slot = rng.choice((-1, 0, options["parallel"] - 1))
    steps.append(_arriving(prompts.prompt(), slot))
    steps.append(prompts.step("after"))
    return workload(
        name=f"{preset}-arrival-{seed}-{number}",
        release=release,
        preset=preset,
        window=window,
        options=options,
        steps=steps,
    )


def draw_pinned(
    seed: int, number: int, *, release: Release, presets: Sequence[str] = ()
) -> Scenario:
    """A conversation, a prompt about as long, and a request that names the slot and continues.

    parked      [ .................. )       shorter than what is read, as long, or longer
    reading     [ 0 .. 2047 ][ 2048 .. )
    arriving    [ parked .......... more )   names the busy slot
    """
    rng = Random(f"pinned {release} {seed} {number}")
    preset, window = draw_preset(rng, abilities=Abilities(release), presets=presets)
    prompts = _Prompts(rng)
    before = prompts.words(rng.choice(EARLIER[2:]))
    lengths = (len(before) - 300, len(before), len(before), rng.randint(*READING))
    reading = prompts.words(max(READING[0], rng.choice(lengths)))
    slot = rng.choice((0, 0, -1))
    rows = (before, reading, before + prompts.words(rng.choice((1, 5, 300))))
    return workload(
        name=f"{preset}-pinned-{seed}-{number}",
        release=release,
        preset=preset,
        window=window,
        options={"ctx_size": ROOM},
        steps=(
            Step(name="parked", prompt=rows[0], predict=1),
            Step(name="reading", prompt=rows[1], predict=1),
            _arriving(rows[2], slot),
        ),
    )


def _arriving(prompt: Tokens, slot: int) -> Step:
    """A request that arrives during the prefill of the one before."""
    return Step(name="arriving", prompt=prompt, predict=1, slot=slot, with_previous=True, turns=1)


class _Prompts:
    """A few conversations, and prompts that continue them."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._earlier = [self.words(rng.choice(EARLIER)) for _ in range(3)]

    def step(self, name: str) -> Step:
        return Step(name=name, prompt=self.prompt(), predict=self._rng.choice((1, 3)))

    def reading(self, slot: int) -> Step:
        """A prompt that takes two batches; it may begin like a conversation."""
        known = self._earlier[0][: self._rng.choice((0, 0, 1_500))]
        fresh = self.words(self._rng.randint(*READING))
        alike = self._rng.choice(self._earlier)  # as long as what may be loaded meanwhile
        if len(alike) > len(known) + READING[0] and self._rng.random() < 0.5:
            fresh = self.words(len(alike) - len(known))
        return Step(name="reading", prompt=known + fresh, predict=1, slot=slot)

    def prompt(self) -> Tokens:
        rng = self._rng
        earlier = rng.choice(self._earlier)
        match rng.choice(("same", "more", "cut", "new")):
            case "same":
                return earlier
            case "more":
                return earlier + self.words(rng.choice((5, 300)))
            case "cut":
                return earlier[: rng.randint(1, len(earlier))]
            case _:
                return self.words(rng.choice((20, 2_000)))

    def words(self, count: int) -> Tokens:
        return as_tokens([self._rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)])
