"""A wrong script as a program that needs transformers and torch alone."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
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
[each.normal_(0, 1.5 / each.shape[1] ** 0.5) for each in model.parameters() if each.dim() == 2]"""

SINGLE: Final = ("inkling2_text", "inkling2_loop_text")
"""Families whose routers compute in float32, which weights in float64 refuse."""

START: Final = "cache, held = {cache}, torch.zeros({rows}, 0, dtype=torch.long)"

FEED: Final = """\
def feed(count):
    global cache, held
    held = torch.cat([held, torch.randint(3, 100, (len(held), count))], 1)
    out = model(held[:, -count:], {key}=cache, use_cache=True)
    {kept}return out.logits"""

PADDED_FEED: Final = """\
def feed(count):
    global cache, held
    held = torch.cat([held, torch.randint(3, 100, (len(held), count))], 1)
    mask = (torch.arange(held.shape[1]) >= pads[:, None]).long()
    out = model(held[:, -count:], {key}=cache, use_cache=True, attention_mask=mask{positions})
    {kept}return out.logits"""

POSITIONS: Final = ",\n                position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -count:]"

TURN: Final = """\
def turn(more):
    new = torch.randint(3, 100, (1, max(more, 0)))
    ids = torch.cat([held, new], 1)[:, : held.shape[1] + more]
    out = model.generate(ids, {key}=cache, max_new_tokens=6, do_sample=False,
                         output_logits=True, return_dict_in_generate=True)
    return out.sequences[:, :-1], torch.stack(out.logits, 1)"""

STEPS: Final[Mapping[str, str]] = {
    "feed": "got = feed({0})",
    "cache static": (
        "from transformers import StaticCache; cache = StaticCache(config, max_cache_len=64)"
    ),
    "cache grouped": (
        "from transformers.cache_utils import QuantizedLayer\n"
        "class Whole(QuantizedLayer):  # a backend that loses no precision\n"
        "    _quantize, _dequantize = lambda self, whole, axis: whole, lambda self, whole: whole\n"
        "cache.layers = [Whole(residual_length=4) for _ in cache.layers]"
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
    "generate": "held, got = turn({0})",
}
"""The line of a step; those of others are in no program."""

PADDED: Final = """\
cold = torch.cat([model(row[None, pad:], use_cache=False).logits[:, -got.shape[1]:]
                  for row, pad in zip(held, pads)])
{printed}"""
"""The end of a program with padding on the left."""

PRINTED: Final = (
    'print(f"off by {(got - cold).abs().max():.2g}; '
    'deviation of the cold logits: {cold.std():.2g}")'
)
TAIL: Final = """\
cold = model(held, use_cache=False).logits[:, -got.shape[1]:]
{printed}"""

BEAMS: Final = """\
ids = torch.randint(3, 100, (1, {0}))
given = dict(num_beams=3, max_new_tokens=6, do_sample=False, output_scores=True)
got, cold = (model.generate(ids, use_cache=each, return_dict_in_generate=True, **given)
             .sequences_scores.item() for each in (True, False))
print(f"off by {{abs(got - cold):.2g}}; the cold score: {{abs(cold):.2g}}")"""
"""The end of a program of beam search."""

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

WIDTH: Final = 110


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
    head = HEAD.format(family=model.family, fields=named)
    if model.family in SINGLE:
        head = head.replace("float64", "float32").replace(".double()", ".float()")
    lines = [part for line in head.splitlines() for part in _wrapped(line)]
    first, *given = script[0]
    if first in ("paged", "packed"):
        return "\n".join([*lines, PAGED.format(max(given))])
    if is_beams(script):
        return "\n".join([*lines, BEAMS.format(given[0])])
    padded = first == "pad"
    steps = [["feed", max(given)], *script[1:]] if padded else script
    rows = len(given) if padded else next((each[1] for each in script if each[0] == "rows"), 1)
    steps = [each for each in steps if each[0] != "rows"]
    cache = "None" if model.own else "DynamicCache(config=config)"
    lines.append(START.format(cache=cache, rows=rows))
    if padded:
        lines.append(f"pads = torch.tensor({[max(given) - each for each in given]})")
    names = {name for name, *_ in steps}
    if "feed" in names:
        positions = POSITIONS if model.positions else ""
        kept = f"cache = out.{model.key}; " if model.own else ""  # others are filled in place
        form = PADDED_FEED if padded else FEED
        lines += form.format(key=model.key, positions=positions, kept=kept).splitlines()
    if "generate" in names:
        lines += TURN.format(key=model.key).splitlines()
    for name, group in groupby(steps, key=lambda each: each[0]):
        lines += _lines(name, list(group), between=between)
    if padded and len(steps) == 1:
        lines.append("got = got[:, -1:]")
    return "\n".join([*lines, (PADDED if padded else TAIL).format(printed=PRINTED)])


def is_beams(script: Script) -> bool:
    """True for a beam search, and nothing else."""
    return len(script) == 1 and script[0][0] == "generate" and script[0][2:] == ["beams"]


def has_program(script: Script) -> bool:
    """False where a step has no lines, or where nothing is compared in the end."""
    first, last = script[0], script[-1]
    if first[0] in ("paged", "packed") or is_beams(script):
        return True
    padded = first[0] == "pad"
    if padded:
        return all(name in ("reorder", "select", "feed") for name, *_ in script[1:])
    simple = all(
        name in ("rows", "reorder", "select")
        or " ".join([name, *map(str, given[:1])]) in STEPS
        or (name in STEPS and given[1:] in ([], ["plain"]))
        for name, *given in script
    )
    return simple and last[0] in ("feed", "generate")


def _wrapped(line: str) -> Iterator[str]:
    """A line; a long one is continued below."""
    if len(line) <= WIDTH:
        yield line
    else:
        yield from wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)


def _lines(name: str, group: Sequence[Step], *, between: bool) -> Iterator[str]:
    """Lines of equal steps; feeds are one loop."""
    if name == "feed" and len(group) > 1 and not between:
        yield f"for count in {tuple(each[1] for each in group)}: got = feed(count)"
        return
    for _, *given in group:
        form = f"cache {given[0]}" if name == "cache" else name
        yield from STEPS[form].format(*given, given=given).splitlines()
        if between:
            yield BETWEEN
