"""A workload in words: its clients' actions, one line each."""

from typing import Final

from cachesim.engines.family import Profile
from cachesim.engines.tokens import get_common_prefix
from cachesim.engines.words import counted
from cachesim.scenario.files import toml_of
from cachesim.scenario.format import Model, Scenario, Step
from cachesim.testing.search import Counterexample
from cachesim.testing.workloads import words_of
from cachesim.typed import Json

MOST_TOKENS: Final = 1000
"""Of an image in a drawn workload."""


def story(found: Counterexample, profile: Profile) -> list[str]:
    """The smallest workload, as a client's actions."""
    scenario = found.scenario
    flags = ", ".join(f"{key} = {_plain(value)}" for key, value in scenario.engine.options.items())
    lines = [f"  {found.finding.kind.upper()} in workload {found.number}, shrunk:"]
    model = _model(scenario.model)
    lines.append(f"    a server of {profile}, {flags or 'all flags default'}{model}")
    seen: list[tuple[int, ...]] = []
    for index, step in enumerate(scenario.step):
        mark = "  <- " + found.finding.detail if index == found.finding.step else ""
        if step.do != "complete":
            lines.append(f"    {deed(step)}{mark}")
            continue
        prompt = _tokens(step.prompt, scenario)
        text = _chat(step) if step.messages else f"a prompt of {counted(len(prompt), 'token')}"
        shown = [part for part in str(step.prompt).split() if part in scenario.images]
        text += f" with {counted(len(shown), 'image')} ({', '.join(shown)})" if shown else ""
        equal = max((get_common_prefix(prompt, other) for other in seen), default=0)
        if step.suffix is not None:  # the server puts marks between, and the order is its own
            behind = _tokens(step.suffix, scenario)
            text += f" before a gap, {counted(len(behind), 'token')} after it"
            equal = 0
        shared = f", {equal} as before" if equal else ""
        together = ", together with the one before" if step.with_previous else ""
        wishes = f", for slot {step.slot}" if step.slot >= 0 else ""
        wishes += "" if step.cache_prompt else ", nothing from cache"
        wishes += "".join(f", with {key} = {_plain(value)}" for key, value in step.options.items())
        lines.append(
            f"    {step.name}: {text}{shared}, "
            f"{len(step.reply or ())} generated{wishes}{together}{mark}"
        )
        if step.suffix is None:
            seen.append(prompt + tuple(int(token) for token in step.reply or ()))
    return lines


def _model(model: Model) -> str:
    """Layers, class and windows of a model, where they are not the preset's."""
    kind = "chunks" if model.chunked else "windows"
    parts = [
        f"layers {', '.join(model.layers)}" if model.layers else "",
        f"model class {model.family}" if model.family else "",
        f"{kind} of {counted(model.window, 'token')}" if model.window else "",
        "every second window compressed" if model.compressed else "",
    ]
    named = " and ".join(filter(None, parts))
    return f", with {named}" if named else ""


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else toml_of(value)


def _tokens(written: str | tuple[int, ...] | None, scenario: Scenario) -> tuple[int, ...]:
    """The tokens of a prompt or suffix; images have numbers of their own, below 0."""
    if not isinstance(written, str):
        return written or ()
    tokens: list[int] = []
    for name in written.split():
        span = scenario.spans[name]
        if isinstance(span, int):
            first = -MOST_TOKENS * (1 + scenario.images.index(name))
            tokens += range(first, first + span)
        elif not isinstance(span, str):
            tokens += span
    return tuple(tokens)


def _chat(step: Step) -> str:
    turns = [f"{turn.role} {len(words_of(turn))}" for turn in step.messages]
    return f"a chat ({', '.join(turns)} tokens)"


def deed(step: Step) -> str:
    """An action that is no completion, in words."""
    if step.do == "cancel":
        turns = counted(step.turns or 1, "turn")
        return f"then its client disconnects after {turns} of the server's loop"
    slot = max(step.slot, 0)
    return {
        "slot-save": f"then slot {slot} is saved into a file",
        "slot-restore": f"then slot {slot} is filled from that file",
        "slot-erase": f"then slot {slot} is erased",
        "restart": "then the server is started again",
        "sleep": "then no request comes, and the server sleeps",
        "set-lora": "then the strengths of the server's own adapters are changed",
    }[step.do]
