"""A wrong script as a program that needs transformers and torch alone."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any, Final, NamedTuple

from cachesim.prove.transformers.scripts import Script, Step
from cachesim.typed import Json

HEAD: Final = """\
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache
torch.manual_seed(0), torch.set_grad_enabled(False), torch.set_default_dtype(torch.float64)
config = CONFIG_MAPPING[{family!r}]({fields})
config._attn_implementation = config._experts_implementation = "eager"
model = AutoModelForCausalLM.from_config(config).double().eval()
[w.normal_(0, 1.5 / w.shape[-1] ** 0.5) for w in model.parameters() if w.dim() in (2, 3)]"""

SINGLE: Final = ("inkling2_text", "inkling2_loop_text")
"""Families whose routers compute in float32, which weights in float64 refuse."""

START: Final = "cache, held = {cache}, torch.zeros({rows}, 0, dtype=torch.long)"

FEED: Final = """\
def feed(count):
    global cache, held
    held = torch.cat([held, torch.randint(3, 100, (len(held), count))], 1)
    {masked}out = model(held[:, -count:], {key}=cache, use_cache=True{more})
    {kept}return out.logits"""

MASKED: Final = """\
at = torch.arange(held.shape[1])[None]
    mask = ({mask}).long()
    """

POSITIONS: Final = ",\n                position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -count:]"

TURN: Final = """\
def turn(more):
    new = torch.randint(3, 100, (1, max(more, 0)))
    ids = torch.cat([held, new], 1)[:, : held.shape[1] + more]
    out = model.generate(ids, {key}=cache, max_new_tokens=6, do_sample=False,
                         output_logits=True, return_dict_in_generate=True)
    return out.sequences[:, :-1], torch.stack(out.logits, 1)"""

GENERATED: Final = """\
ids = torch.randint(3, 100, ({rows}, {width}))
given = dict(max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True)
out = model.generate(ids, **given, {manner})
held, got = out.sequences[:, :-1], torch.stack(out.logits, 1)"""
"""A call of `generate`; its tokens are given to the cold run."""

MANNERS: Final[Mapping[str, str]] = {
    "chunks": "prefill_chunk_size=5",
    "static": 'cache_implementation="static", disable_compile=True',
    "lookup": "prompt_lookup_num_tokens=4, max_matching_ngram_size=2",
    "assisted": "assistant_model=helper",
}
HELPER: Final = """\
import copy; helper = copy.deepcopy(model)
[each.add_(torch.randn_like(each) * 0.05) for each in helper.parameters()]"""

LEFT: Final = "at >= pads[:, None]"
RIGHT: Final = "(at < {width} - pads[:, None]) | (at >= {width})"
"""Columns that are no padding."""

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
    "cache fp8": (
        "from transformers.cache_utils import Fp8QuantizedLayer\n"
        "class Whole(Fp8QuantizedLayer):  # a backend that loses no precision\n"
        "    _quantize = lambda self, whole, *_, **__: (whole, 1.0)\n"
        "    _dequantize = lambda self, stored: stored[0]\n"
        "cache.layers = [Whole() for _ in cache.layers]"
    ),
    "cache crossed": (
        "from transformers import EncoderDecoderCache\n"
        "cache = EncoderDecoderCache(cache, DynamicCache(config=config))"
    ),
    "encoder": "more = dict(encoder_hidden_states=torch.randn(1, {0}, config.hidden_size))",
    "fork": (
        "import copy; kept = cache, held; cache = copy.deepcopy(cache)\nfeed(3); cache, held = kept"
    ),
    "other": "model(torch.randint(3, 100, (1, {0})), {other}use_cache=True)",
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
cold = torch.cat([model({alone}, use_cache=False).logits[:, -got.shape[1]:]
                  for row, pad in zip(held, pads)])
{printed}"""
"""The end of a program with padding."""

ALONE: Final = "row[None, pad:]"
ALONE_RIGHT: Final = "torch.cat([row[: {width} - pad], row[{width} :]])[None]"
"""A row without its padding."""

ENDS: Final = "got = got[:, -1:]"
ENDS_RIGHT: Final = (
    "got = torch.stack([row[{width} - pad - 1 :][:1] for row, pad in zip(got, pads)])"
)
"""Logits of the last tokens of a padded prompt."""

PRINTED: Final = (
    'print(f"off by {(got - cold).abs().max():.2g}; '
    'deviation of the cold logits: {cold.std():.2g}")'
)
TAIL: Final = """\
cold = model(held, use_cache=False{more}).logits[:, -got.shape[1]:]
{printed}"""

BEAMS: Final = """\
ids = torch.randint(3, 100, (1, {0}))
given = dict(num_beams=3, num_return_sequences=3, no_repeat_ngram_size=1, max_new_tokens=6,
             do_sample=False, output_scores=True, return_dict_in_generate=True)
got, cold = (model.generate(ids, use_cache=each, **given).sequences_scores
             for each in (True, False))
print(f"off by {{(got - cold).abs().max():.2g}}; the best cold score: {{cold[0].abs():.2g}}")"""
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

WIDTH: Final = 110


class Model(NamedTuple):
    """Lines of a program about its model."""

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


def program_of(model: Model, script: Script) -> str:
    """The program, or nothing."""
    if not has_program(script):
        return ""
    named = ", ".join(f"{name}={value!r}" for name, value in model.fields.items())
    head = HEAD.format(family=model.family, fields=named)
    if model.family in SINGLE or script[0][0] in (
        "pad",
        "batch",
    ):  # whose scores are NaN in float64
        head = head.replace("float64", "float32").replace(".double()", ".float()")
    lines = [part for line in head.splitlines() for part in _wrapped(line)]
    first, *given = script[0]
    if first in ("paged", "packed"):
        return "\n".join([*lines, PAGED.format(max(given))])
    if is_beams(script):
        return "\n".join([*lines, BEAMS.format(given[0])])
    if is_generated(script):
        return "\n".join([*lines, *_generated(first, given)])
    padded, masked = first in ("pad", "right"), first == "mask"
    width = max(given) if padded else 0
    steps = [["feed", width], *script[1:]] if padded else script[masked:]
    rows = len(given) if padded else next((line[1] for line in script if line[0] == "rows"), 1)
    steps = [step for step in steps if step[0] != "rows"]
    cache = "None" if model.own else "DynamicCache(config=config)"
    lines.append(START.format(cache=cache, rows=rows))
    if padded or masked:
        pads = [width - length for length in given] if padded else [0]
        lines.append(f"pads = torch.tensor({pads})")
    names = {name for name, *_ in steps}
    more = ", **more" if "encoder" in names else ""
    right = first == "right"
    if "feed" in names:
        kept = f"cache = out.{model.key}; " if model.own else ""  # others are filled in place
        mask, named = "", more
        if padded or masked:
            mask = MASKED.format(mask=(RIGHT if right else LEFT).format(width=width))
            named = ", attention_mask=mask" + POSITIONS * (model.positions and padded)
        lines += FEED.format(key=model.key, kept=kept, masked=mask, more=named).splitlines()
    if "generate" in names:
        lines += TURN.format(key=model.key).splitlines()
    other = "" if model.own else f"{model.key}={cache}, "
    for name, group in groupby(steps, key=lambda line: line[0]):
        lines += _lines(name, list(group), other)
    if padded and len(steps) == 1:
        lines.append((ENDS_RIGHT if right else ENDS).format(width=width))
    tail = PADDED if padded else TAIL
    alone = (ALONE_RIGHT if right else ALONE).format(width=width)
    return "\n".join([*lines, tail.format(printed=PRINTED, alone=alone, more=more)])


def _generated(first: str, given: Sequence[Any]) -> Iterator[str]:
    """A single `generate`, of a batch with padding or in a manner, and its uncached run."""
    width, rows, manner, tail = given[0], 1, "", TAIL
    if first == "batch":
        width, rows, tail = max(given), len(given), PADDED
        yield f"pads = torch.tensor({[width - length for length in given]})"
        manner = f"attention_mask=(torch.arange({width}) >= pads[:, None]).long()"
    else:
        manner = MANNERS[given[1]]
    if "helper" in manner:
        yield from HELPER.splitlines()
    yield from GENERATED.format(rows=rows, width=width, manner=manner).splitlines()
    yield tail.format(printed=PRINTED, alone=ALONE, more="")


def is_beams(script: Script) -> bool:
    """True for a beam search, and nothing else."""
    return len(script) == 1 and script[0][0] == "generate" and script[0][2:] == ["beams"]


def is_generated(script: Script) -> bool:
    """True for one `generate` of a batch, or in a manner, and nothing else."""
    (name, *given), *others = script
    return not others and (name == "batch" or (name == "generate" and given[1] in MANNERS))


def has_program(script: Script) -> bool:
    """False where a step has no lines, or where nothing is compared in the end."""
    first, last = script[0], script[-1]
    if first[0] in ("paged", "packed") or is_beams(script) or is_generated(script):
        return True
    if first[0] in ("pad", "right"):
        return all(name in ("reorder", "select", "feed") for name, *_ in script[1:])
    simple = all(
        name in ("rows", "reorder", "select")
        or (name, script[0]) == ("mask", [name])
        or " ".join([name, *map(str, given[:1])]) in STEPS
        or (name in STEPS and given[1:] in ([], ["plain"]))
        for name, *given in script
    )
    return simple and last[0] in ("feed", "generate")


def _wrapped(line: str) -> Iterator[str]:
    if len(line) <= WIDTH:
        yield line
    else:
        yield from wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)


def _lines(name: str, group: Sequence[Step], other: str) -> Iterator[str]:
    if name == "feed" and len(group) > 1:
        yield f"for count in {tuple(line[1] for line in group)}: got = feed(count)"
        return
    for _, *given in group:
        form = f"cache {given[0]}" if name == "cache" else name
        yield from STEPS[form].format(*given, given=given, other=other).splitlines()
