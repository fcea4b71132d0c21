"""What happens to a server beside conversations: restarts, sleep, embeddings, gaps, cancels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from cachesim.real.llama_cpp.flags import drafting
from cachesim.scenario import limits
from cachesim.scenario.format import Step
from cachesim.units import Tokens

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
"""How often a step of a workload is such a thing, where its server can be asked for it."""

TOO_LONG: Final = 0.1
"""How often several completions are asked of a prompt longer than the context."""


@dataclass(slots=True)
class Incidents:
    """Draws such things for one server."""

    rng: Random
    options: Mapping[str, Any]
    too_long: int  # tokens that fit no slot
    prompt: Callable[[], Tokens]  # the next prompt of a conversation
    fresh: Callable[[int], Tokens]  # so many tokens that nobody has said

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
                return (self._gap(name),)
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
        first = Step(
            name=f"r{number}",
            predict=0,
            query=len(query),
            options={"endpoint": endpoint},
        )
        return tuple(
            replace(
                first,
                name=f"r{number + later}",
                prompt=query + self._document(),
                with_previous=later > 0,
            )
            for later in range(rng.choice((1, 1, 2, 3)))
        )

    def _document(self) -> Tokens:
        if self.rng.random() < 0.5:
            return self.prompt()
        return self.fresh(self.rng.choice((3, 30, 200)))

    def _gap(self, name: str) -> Step:
        """A gap in a text, with more around it than the server keeps, now and then."""
        return Step(
            name=name,
            prompt=self.prompt(),
            suffix=self.fresh(self.rng.choice((0, 3, 10, 200))) or None,
            predict=self.rng.choice((1, 4)),
            options={"endpoint": "infill"},
        )
