"""Random workloads of the real `Llama` class, and other rules held against its results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.family import Profile
from cachesim.engines.llama_cpp_python.family import FAMILY
from cachesim.engines.llama_cpp_python.rules import Rules
from cachesim.model.presets import PRESETS
from cachesim.model.spec import FIRST_PLAIN
from cachesim.prove.llama_cpp.gguf import text_of
from cachesim.prove.llama_cpp_python.fitting import ACTIONS
from cachesim.prove.llama_cpp_python.scenarios import PRECISE, Instance, compared
from cachesim.prove.playing import Difference
from cachesim.scenario.format import Prompt, Scenario, Step, Turn
from cachesim.testing.workloads import Seeded, Shape, draw_workload
from cachesim.typed import Json
from conformance.real.agreement import first_difference

SHAPE: Final = Shape(max_steps=5, longest=90, together=False, fixed=PRECISE)


OPTION_SETS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {},
    {"n_ctx": 100},
    {"n_ctx": 256},
    {"n_ctx": 1024, "n_batch": 32},
    {"n_batch": 64, "n_ubatch": 16, "swa_full": False},
    {"logits_all": True},
    {"embedding": True, "cache": "disk"},
    {"embedding": False, "swa_full": True, "cache": "ram"},
)
"""Changed arguments of a recreated instance."""


TEXTS: Final = (0, 1, 40, 300)
"""Tokens to be embedded; 0: an empty list of texts, where llama_decode returns -1."""


CAPACITIES: Final = {
    "none": (2 << 30,),
    "ram": (2 << 30, 200_000, 100_000, 50_000),
    "disk": (2 << 30, 20_000),  # a database's pages are not counted one by one
}


SYMBOLS: Final = 9
"""Tokens of a workload in which n-grams are to be found again."""


def draw(release: str, preset: str, seed: int, number: int) -> Scenario:
    """A drawn workload; between its prompts states are saved and loaded, instances made anew."""
    draws = Seeded(f"{seed}/{number}/{preset}")
    drawn = draw_workload(draws, Profile(FAMILY.name, release), preset, SHAPE)
    embeds = "conv" not in PRESETS[preset].layers
    cache = draws.one_of(("ram", "ram", "disk", "none"))
    options = dict(drawn.engine.options) | {
        "cache": cache,
        "capacity_bytes": draws.one_of(CAPACITIES[cache]),
        "draft_model": draws.one_of(("none", "none", "prompt-lookup")),
        "embedding": embeds and draws.one_of((False, False, True)),
    }
    chats = draws.integer(0, 3) == 3
    steps: list[Step] = []
    for drawn_step in drawn.step:
        step = drawn_step
        if options["draft_model"] != "none":
            step = replace(step, prompt=_few(step.prompt), reply=_few(step.reply))
        if draws.integer(0, 1):
            most = max(1, step.predict or len(step.reply or ()))
            step = replace(step, reply=None, predict=most)
        steps.append(_as_chat(step) if chats else step)
        if draws.integer(0, 2):
            continue
        do = draws.one_of((*ACTIONS, "complete") if options["embedding"] else ACTIONS)
        if do == "slot-restore" and all(each.do != "slot-save" for each in steps):
            do = "slot-save"
        step = Step(name=f"{do}-{len(steps)}", do=do)
        if do in {"slot-save", "slot-restore"}:
            step = replace(step, file="s")
        elif do == "restart":
            step = replace(step, options=draws.one_of(OPTION_SETS[: None if embeds else -2]))
        elif do == "complete":
            text = draws.tokens(draws.one_of(TEXTS), FIRST_PLAIN, FIRST_PLAIN + SYMBOLS)
            step = replace(step, prompt=text, options={"endpoint": "embedding"})
        steps.append(step)
    return replace(drawn, engine=replace(drawn.engine, options=options), step=tuple(steps))


def _as_chat(step: Step) -> Step:
    """The first tokens of a prompt as instructions, the rest as a question."""
    first, rest = step.ids[:20], step.ids[20:]
    turns = Turn(role="system", content=text_of(first)), Turn(role="user", content=text_of(rest))
    return replace(step, prompt=None, messages=turns)


def _few(tokens: Prompt) -> Prompt:
    """The workload's tokens, mapped to fewer values."""
    return None if tokens is None else tuple(FIRST_PLAIN + int(t) % SYMBOLS for t in tokens)


def difference_under(
    scenario: Scenario, release: str, results: Sequence[Json], rules: Rules
) -> Difference | None:
    """The first step at which other rules differ from the real class."""
    session = Instance(scenario, release, rules)
    steps = tuple(compared(session, session.counted(), results))
    return first_difference([step.real for step in steps], [step.simulated for step in steps])
