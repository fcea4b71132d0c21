"""A wrong script as a program that needs transformers and torch alone."""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Final, NamedTuple

from cachesim.lab.real.transformers.scripts import Script, Step
from cachesim.typed import Json

HEAD: Final = """\
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache
torch.manual_seed(0), torch.set_grad_enabled(False), torch.set_default_dtype(torch.float64)
config = CONFIG_MAPPING[{family!r}]({fields})
config._attn_implementation = config._experts_implementation = "eager"
model = AutoModelForCausalLM.from_config(config).double().eval()
for weight in [each for each in model.parameters() if each.dim() == 2]:
    weight.normal_(0, 1.5 / weight.shape[1] ** 0.5)
cache, held = {cache}, torch.zeros(1, 0, dtype=torch.long)"""

STEPS: Final[Mapping[str, str]] = {
    "rows": "held = held.repeat({0}, 1)",
    "feed": (
        "held = torch.cat([held, torch.randint(3, 100, (len(held), {0}))], 1)\n"
        "out = model(held[:, -{0}:], {key}=cache, use_cache=True)\n"
        "got, cache = out.logits, out.{key}"
    ),
    "cache static": (
        "from transformers import StaticCache; cache = StaticCache(config, max_cache_len=64)"
    ),
    "cache grouped": (
        "from transformers.cache_utils import QuantizedLayer\n"
        "class Whole(QuantizedLayer):  # a backend that loses no precision\n"
        "    def _quantize(self, tensor, axis): return tensor\n"
        "    def _dequantize(self, stored): return stored\n"
        "cache.layers = [Whole(residual_length=4) for _ in cache.layers]"
    ),
    "pad": (
        "pads = torch.tensor({pads}); rows, width = len(pads), {width}\n"
        "held = torch.randint(3, 100, (rows, 0))\n"
        "def mask(): return (torch.arange(held.shape[1])[None] >= pads[:, None]).long()"
    ),
    "padded": (
        "held = torch.cat([held, torch.randint(3, 100, (rows, {0}))], 1)\n"
        "given = {{'attention_mask': mask()}}{positions}\n"
        "out = model(held[:, -{0}:], {key}=cache, use_cache=True, **given)\n"
        "got, cache = out.logits{last}, out.{key}"
    ),
    "try": (
        "try: cache.crop({0})\nexcept RuntimeError as error: print('refused:', str(error)[:60])"
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

POSITIONS: Final = " | {{'position_ids': (mask().cumsum(-1) - 1).clamp(min=0)[:, -{0}:]}}"

PADDED: Final = """\
cold = torch.cat([model(row[None, pad:], use_cache=False).logits[:, -got.shape[1]:]
                  for row, pad in zip(held, pads.tolist())])
print(f"off by {(got - cold).abs().max():.2g}; deviation of the cold logits: {cold.std():.2g}")"""
"""The end of a program with padding on the left."""

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


class Model(NamedTuple):
    """What a program says of its model."""

    family: str
    fields: Mapping[str, Any]
    key: str = "past_key_values"
    own: bool = False  # a cache class of its own, which the model makes
    positions: bool = False  # it takes position_ids

    @classmethod
    def of(cls, family: str, answer: Json) -> "Model":
        """The model of a worker's answer."""
        given = (answer["fields"], answer["key"], answer["own"], answer["positions"])
        return cls(family, *given)


def program_of(model: Model, script: Script, *, between: bool = False) -> str:
    """The program, or nothing; `between`: another run of the model after each step."""
    if not has_program(script):
        return ""
    named = ", ".join(f"{name}={value!r}" for name, value in model.fields.items())
    cache = "None" if model.own else "DynamicCache(config=config)"
    head = HEAD.format(family=model.family, fields=named, cache=cache)
    lines = [part for line in head.splitlines() for part in _wrapped(line)]
    if script[0][0] == "paged":
        return "\n".join([*lines[:-1], PAGED.format(max(script[0][1:]))])
    padded = script[0][0] == "pad"
    steps = [
        line
        for step in script
        for line in (*_lines(step, model, padded=padded), *([BETWEEN] * between))
    ]
    return "\n".join([*lines, *steps, PADDED if padded else TAIL])


def has_program(script: Script) -> bool:
    """False where a step has no lines, or where nothing is compared in the end."""
    padded = script[0][0] == "pad"
    simple = all(
        name in ("reorder", "select") or (name == "pad" and at == 0)
        if padded
        else name in ("reorder", "select")
        or " ".join([name, *map(str, given[:1])]) in STEPS
        or (name in STEPS and name != "pad" and given[1:] in ([], ["plain"]))
        for at, (name, *given) in enumerate(script)
        if not (padded and name == "feed")
    )
    return script[0][0] == "paged" or (
        simple and (script[-1][0] in ("feed", "generate") or (script == script[:1] and padded))
    )


def _wrapped(line: str) -> Iterator[str]:
    """A line; a long one is continued below."""
    if len(line) <= WIDTH:
        yield line
    else:
        yield from wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)


def _lines(step: Step, model: Model, *, padded: bool) -> Iterator[str]:
    name, *given = step
    more = max(0, given[0]) if name == "generate" else 0
    more_of: dict[str, Any] = {"given": given, "key": model.key, "more": more}
    if name == "pad":
        width = max(given)
        more_of |= {"pads": [width - each for each in given], "width": width}
        yield from STEPS["pad"].format(*given, **more_of).splitlines()
        name, given = "feed", [width]
    if padded and name == "feed":
        more_of["positions"] = POSITIONS.format(*given) if model.positions else ""
        more_of["last"] = "[:, -1:]" if step[0] == "pad" else ""
        name = "padded"
    elif name == "cache":
        name = f"cache {given[0]}"
    yield from STEPS[name].format(*given, **more_of).splitlines()
