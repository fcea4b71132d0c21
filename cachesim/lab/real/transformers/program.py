"""A wrong script as a program that needs transformers and torch alone."""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Final

from cachesim.lab.real.transformers.scripts import Script, Step

HEAD: Final = """\
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache
torch.manual_seed(0), torch.set_grad_enabled(False), torch.set_default_dtype(torch.float64)
config = CONFIG_MAPPING[{family!r}]({fields})
config._attn_implementation = config._experts_implementation = "eager"
model = AutoModelForCausalLM.from_config(config).double().eval()
for weight in [each for each in model.parameters() if each.dim() == 2]:
    weight.normal_(0, 1.5 / weight.shape[1] ** 0.5)
cache, held = DynamicCache(config=config), torch.zeros(1, 0, dtype=torch.long)"""

STEPS: Final[Mapping[str, str]] = {
    "rows": "held = held.repeat({0}, 1)",
    "feed": (
        "held = torch.cat([held, torch.randint(3, 100, (len(held), {0}))], 1)\n"
        "got = model(held[:, -{0}:], {key}=cache, use_cache=True).logits"
    ),
    "crop": "cache.crop({0}); held = held[:, :{0}]",
    "record": "cache.activate_past_recording()",
    "reset": "cache.reset(); held = held[:, :0]",
    "reorder": "order = {given}; cache.reorder_cache(torch.tensor(order)); held = held[order]",
    "select": (
        "order = {given}; cache.batch_select_indices(torch.tensor(order)); held = held[order]"
    ),
    "repeat": "cache.batch_repeat_interleave({0}); held = held.repeat_interleave({0}, 0)",
    "generate": (
        "size, more = held.shape[1] + {0}, torch.randint(3, 100, (1, {more}))\n"
        "held = torch.cat([held, more], 1)[:, :size]\n"
        "out = model.generate(held, {key}=cache, max_new_tokens=6, do_sample=False,\n"
        "                     output_logits=True, return_dict_in_generate=True)\n"
        "held, got = out.sequences[:, :-1], torch.stack(out.logits, 1)"
    ),
}
"""Lines of a step; those of others are in no program."""

TAIL: Final = """\
cold = model(held, use_cache=False).logits[:, -got.shape[1]:]
print(f"off by {(got - cold).abs().max():.2g}; deviation of the cold logits: {cold.std():.2g}")"""

WIDTH: Final = 100


def program_of(family: str, fields: Mapping[str, Any], key: str, script: Script) -> str:
    """The program; empty where a step has no lines, or where nothing is fed after a step."""
    simple = all(
        name in ("reorder", "select") or (name in STEPS and given[1:] in ([], ["plain"]))
        for name, *given in script
    )
    if not simple or script[-1][0] not in ("feed", "generate"):
        return ""
    named = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    head = HEAD.format(family=family, fields=named)
    lines = [part for line in head.splitlines() for part in _wrapped(line)]
    return "\n".join([*lines, *(line for step in script for line in _lines(step, key)), TAIL])


def _wrapped(line: str) -> Iterator[str]:
    """A line; a long one is continued below."""
    if len(line) <= WIDTH:
        yield line
    else:
        yield from wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)


def _lines(step: Step, key: str) -> Iterator[str]:
    name, *given = step
    more = max(0, given[0]) if name == "generate" else 0
    yield from STEPS[name].format(*given, given=given, key=key, more=more).splitlines()
