"""Workloads in which a request arrives while the server reads another one's prompt.

    A   [ 0 .. 2047 ][ 2048 .. ]        a prompt of two batches at least, default batch size
             B arrives here             and is looked at between the two

What it meets there is a slot at work: it is deferred, or takes another slot, or, where it names the
slot, October's server swaps the slot's conversation first.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from cachesim.engines.byte_tokenizer import FIRST_WORD, VOCABULARY
from cachesim.real.llama_cpp.abilities import Abilities
from cachesim.real.llama_cpp.random_flags import draw_preset
from cachesim.real.llama_cpp.workload import Release, workload
from cachesim.scenario.format import Scenario, Step
from cachesim.units import Tokens, as_tokens

CONTEXT: Final = 32_768
READING: Final = (2_100, 4_000)
"""Tokens of the long prompt that no cache knows: more than a batch of 2,048."""

EARLIER: Final = (50, 800, 2_500, 3_000, 4_500)
"""Lengths of the conversations before: shorter and longer than what is being read."""


def draw_arrival(
    seed: int, number: int, *, release: Release, presets: Sequence[str] = ()
) -> Scenario:
    """Some conversations; a long prompt, and a request that arrives meanwhile; one more."""
    rng = Random(f"arrival {release} {seed} {number}")
    able = Abilities(release)
    preset, window = draw_preset(rng, abilities=able, presets=presets)
    options = {"parallel": rng.choice((1, 1, 2, 3)), "ctx_size": CONTEXT}
    if rng.random() < 0.3:
        options["kv_unified"] = True
    if rng.random() < 0.2:
        options["cache_ram"] = 0
    talk = _Talk(rng)
    steps = [talk.step(f"r{index}") for index in range(rng.randint(1, 3))]
    steps.append(talk.reading(rng.choice((-1, -1, 0))))
    steps.append(talk.arriving(rng.choice((-1, 0, options["parallel"] - 1))))
    steps.append(talk.step("after"))
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
    """A conversation; a prompt about as long; and somebody who names the slot and goes on with it.

    parked      [ .................. )       shorter than what is read, as long, or longer
    reading     [ 0 .. 2047 ][ 2048 .. )
    arriving    [ parked .......... more )   names the slot that is at work
    """
    rng = Random(f"pinned {release} {seed} {number}")
    preset, window = draw_preset(rng, abilities=Abilities(release), presets=presets)
    talk = _Talk(rng)
    parked = talk.words(rng.choice(EARLIER[2:]))
    lengths = (len(parked) - 300, len(parked), len(parked), rng.randint(*READING))
    reading = talk.words(max(READING[0], rng.choice(lengths)))
    slot = rng.choice((0, 0, -1))
    asked = (parked, reading, parked + talk.words(rng.choice((1, 5, 300))))
    return workload(
        name=f"{preset}-pinned-{seed}-{number}",
        release=release,
        preset=preset,
        window=window,
        options={"ctx_size": CONTEXT},
        steps=(
            Step(name="parked", prompt=asked[0], predict=1),
            Step(name="reading", prompt=asked[1], predict=1),
            Step(
                name="arriving",
                prompt=asked[2],
                predict=1,
                slot=slot,
                with_previous=True,
                turns=1,
            ),
        ),
    )


class _Talk:
    """A few conversations, and prompts that go on from them."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._earlier = [self.words(rng.choice(EARLIER)) for _ in range(3)]

    def step(self, name: str) -> Step:
        """A request that is alone."""
        return Step(name=name, prompt=self._prompt(), predict=self._rng.choice((1, 3)))

    def reading(self, slot: int) -> Step:
        """A prompt that takes two batches; it may begin like a conversation."""
        known = self._earlier[0][: self._rng.choice((0, 0, 1_500))]
        fresh = self.words(self._rng.randint(*READING))
        alike = self._rng.choice(self._earlier)  # as long as what may be loaded meanwhile
        if len(alike) > len(known) + READING[0] and self._rng.random() < 0.5:
            fresh = self.words(len(alike) - len(known))
        return Step(name="reading", prompt=known + fresh, predict=1, slot=slot)

    def arriving(self, slot: int) -> Step:
        """What comes meanwhile."""
        return Step(
            name="arriving",
            prompt=self._prompt(),
            predict=1,
            slot=slot,
            with_previous=True,
            turns=1,
        )

    def _prompt(self) -> Tokens:
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
