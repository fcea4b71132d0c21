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
    "cache": "from transformers import StaticCache; cache = StaticCache(config, max_cache_len=64)",
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

PAGED: Final = """\
import transformers
settings = transformers.GenerationConfig(
    max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
pages = transformers.ContinuousBatchingConfig(
    page_size=4, num_blocks=64, max_batch_tokens=32, use_cuda_graph=False)
prompts = torch.randint(3, 100, (2, {0}))
cold = model.generate(prompts, generation_config=settings, use_cache=False)[:, {0}:].tolist()
model.set_attn_implementation("eager")
batch = model.generate_batch(prompts.tolist(), generation_config=settings, progress_bar=False,
                             continuous_batching_config=pages)
for expected, got in zip(cold, batch.values()):
    print("expected", expected, "got", got.generated_tokens, got.error or "")"""
"""The end of a program for continuous batching."""

BETWEEN: Final = "model(torch.randint(3, 100, (1, 9)), use_cache=False)"
"""A line for another conversation."""

WIDTH: Final = 100


def program_of(
    family: str, fields: Mapping[str, Any], key: str, script: Script, *, between: bool = False
) -> str:
    """The program, or nothing; `between`: another run of the model after each step."""
    if not has_program(script):
        return ""
    named = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    head = HEAD.format(family=family, fields=named)
    lines = [part for line in head.splitlines() for part in _wrapped(line)]
    if script[0][0] == "paged":
        return "\n".join([*lines[:-1], PAGED.format(max(script[0][1:]))])
    steps = [line for step in script for line in (*_lines(step, key), *([BETWEEN] * between))]
    return "\n".join([*lines, *steps, TAIL])


def has_program(script: Script) -> bool:
    """False where a step has no lines, or where nothing is compared in the end."""
    simple = all(
        name in ("reorder", "select") or (name in STEPS and given[1:] in ([], ["plain"]))
        for name, *given in script
    )
    return script[0][0] == "paged" or (simple and script[-1][0] in ("feed", "generate"))


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
