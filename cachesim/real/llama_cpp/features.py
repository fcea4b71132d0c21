"""What a workload uses: by which its agreement is counted."""

from collections.abc import Iterator

from cachesim.real.llama_cpp.flags import NO_FLAGS, drafting
from cachesim.scenario.format import Scenario, Step

FLAGS = {
    "several slots": ("parallel", (1,)),
    "one pool of cells": ("kv_unified", (False,)),
    "cache type": ("cache_type_k", ("f16",)),
    "cache-ram": ("cache_ram", (8192,)),
    "cache-reuse": ("cache_reuse", (0,)),
    "context shift": ("context_shift", (False,)),
    "swa-full": ("swa_full", (False,)),
    "no-cache-prompt": ("cache_prompt", (True,)),
    "trained context": ("ctx_size", range(1, 1 << 24)),
    "n-grams": ("spec_type", ("none", "draft-mtp", "draft-simple")),
}
"""Feature -> the flag that brings it, and the values with which it does not."""


def features_of(workload: Scenario) -> frozenset[str]:
    """Everything that a workload uses, by name."""
    flags = {
        name
        for name, (flag, without) in FLAGS.items()
        if flag in workload.engine.options and workload.engine.options[flag] not in without
    }
    steps = {name for step in workload.step for name in _of_step(step)}
    drafts = {"drafts"} if drafting(workload.engine.options) else set()
    bare = {"no flag but the model"} if workload.engine.options == NO_FLAGS else set()
    long = {"session of 70"} if workload.requests >= 70 else set()
    return frozenset({"any", *flags, *steps, *drafts, *bare, *long})


def _of_step(step: Step) -> Iterator[str]:
    if step.do != "complete":
        yield "slot file" if step.do in {"slot-save", "slot-restore"} else step.do
        return
    endpoint = step.options.get("endpoint", "completion")
    said = {
        endpoint: endpoint != "completion",
        "chat": bool(step.messages),
        "tools": "tools" in step.options,
        "no opened reply": "add_generation_prompt" in step.options,
        "content parts": step.parts and bool(step.messages),
        "continued message": step.messages[-1:] != () and step.messages[-1].role == "assistant",
        "role developer": any(each.role == "developer" for each in step.messages),
        "cache_prompt said": "cache_prompt" in step.options,
        "n_predict below -1": step.options.get("n_predict", 0) < -1,
        "completions": step.completions > 1,
        "cancel": step.leaves is not None,
        "arrival": bool(step.turns),
        "prompts in one call": step.with_previous and not step.turns,
        "slot named": step.slot >= 0,
        "empty prompt": not step.prompt and not step.messages,
    }
    yield from (name for name, stands in said.items() if stands)
