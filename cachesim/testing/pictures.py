"""Images in drawn prompts: runs of tokens that a scenario names as spans.

A tree draws token ids. The ids of an image, wherever a prompt has all of them, become its name, and
those between images become spans of their own:

    drawn    [ 301 288 | 411 407 499 | 350 ]
    sent     "t0 i1 t1"      images = ["i0", "i1", "i2"]
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cachesim.scenario.format import Scenario, Step
from cachesim.testing.workloads import FIRST_WORD, LAST_WORD, Draws

IMAGES: Final[Mapping[str, int]] = {"i0": 4, "i1": 4, "i2": 9}
"""Names and tokens: two of one length, so that a key could mix them up."""


def with_images(scenario: Scenario) -> Scenario:
    """A scenario whose prompts may have images."""
    return replace(scenario, spans={**scenario.spans, **IMAGES}, images=tuple(IMAGES))


class Pictures:
    """The images of one workload; `always`: each prompt has one."""

    def __init__(
        self, draws: Draws, runs: Mapping[str, tuple[int, ...]], *, always: bool = False
    ) -> None:
        self._draws, self._always = draws, always
        self._runs = {name: runs[name] for name in IMAGES}
        self._texts: dict[tuple[int, ...], str] = {}

    def _split(self, prompt: tuple[int, ...]) -> list[str | tuple[int, ...]]:
        """Names of images, and the tokens before, between and after them."""
        parts: list[str | tuple[int, ...]] = []
        start = at = 0
        while at < len(prompt):
            named = (n for n, run in self._runs.items() if prompt[at : at + len(run)] == run)
            name = next(named, None)
            if name is None:
                at += 1
                continue
            parts += [prompt[start:at], name] if at > start else [name]
            start = at = at + len(self._runs[name])
        return [*parts, prompt[start:]] if start < len(prompt) else parts

    def inserted(self, words: tuple[int, ...]) -> tuple[int, ...]:
        """New tokens, half of them with an image or two."""
        draws = self._draws
        for _ in range(draws.integer(-1, 2)):
            at = draws.integer(0, len(words) - 1)
            words = (*words[:at], *self._runs[draws.one_of([*self._runs])], *words[at:])
        return words

    def changed(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """A prompt that does not end with an image; now and then with others than drawn."""
        draws, parts = self._draws, self._split(prompt)
        at = [index for index, part in enumerate(parts) if isinstance(part, str)]
        if self._always and not at:
            parts, at = [draws.one_of([*self._runs]), *parts], [0]
        if at and not draws.integer(0, 5):
            one, other = draws.one_of(at), draws.one_of(at)
            parts[one], parts[other] = parts[other], parts[one]
            if one == other:
                parts[one] = draws.one_of([*self._runs])
        if parts and isinstance(parts[-1], str):
            parts.append(draws.tokens(1, FIRST_WORD, LAST_WORD))
        tokens = (self._runs[part] if isinstance(part, str) else part for part in parts)
        return tuple(token for row in tokens for token in row)

    def named(self, step: Step) -> tuple[Step, dict[str, tuple[int, ...]]]:
        """A step whose prompt names its images, and further spans, for its texts."""
        parts = self._split(step.ids)
        if not any(isinstance(part, str) for part in parts):
            return step, {}
        new = {}
        for part in parts:
            if not isinstance(part, str) and part not in self._texts:
                self._texts[part] = f"t{len(self._texts)}"
                new[self._texts[part]] = part
        words = (part if isinstance(part, str) else self._texts[part] for part in parts)
        return replace(step, prompt=" ".join(words)), new
