"""Tiny models of mlx-lm's own classes with a tokenizer of words, in folders that its loader reads.

Runs in a release's environment. It shares no line with the simulator's own tokenizer, so the two
can disagree.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cachesim.prove.worker_side import Real


def write_model(folder: Path, model: Mapping[str, Any]) -> None:
    """Configuration and weights, given ones or random ones.

    The type of the model is one that only mlx-lm knows: the library of tokenizers has classes of
    its own for some real types, whatever the files of the tokenizer say.
    """
    mx = importlib.import_module("mlx.core")
    kind = f"toy_{model['module']}"
    importlib.import_module("mlx_lm.utils").MODEL_REMAPPING[kind] = model["module"]
    tensors = dict(mx.load(model["weights"])) if "weights" in model else _random(mx, model)
    (folder / "config.json").write_text(json.dumps({**model["arguments"], "model_type": kind}))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})


def _random(mx: Real, model: Mapping[str, Any]) -> dict[str, Real]:
    """Weights by which states forget slowly, so that a wrong one stays wrong."""
    module = importlib.import_module(f"mlx_lm.models.{model['module']}")
    flatten = importlib.import_module("mlx.utils").tree_flatten
    mx.random.seed(7)
    made = module.Model(module.ModelArgs.from_dict(model["arguments"]))
    for _, part in made.named_modules():
        if "A_log" in part:
            part.A_log = mx.full(part.A_log.shape, -4.0)
    mx.eval(made.parameters())
    return dict(flatten(made.parameters()))


def watch_calls(name: str, on_call: Callable[[int, int], None]) -> None:
    """Report every call of a model of this module."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    kind: Real = module.Model
    call = getattr(kind, "unwatched", kind.__call__)

    def watched(self: Real, inputs: Real, *rest: Real, **more: Real) -> Real:
        on_call(*inputs.shape)
        return call(self, inputs, *rest, **more)

    kind.unwatched, kind.__call__ = call, watched


MARKS = ["<unk>", "<|im_start|>", "\n", "<|im_end|>", "system", "user", "assistant", "tool"]
THINK = ["<think>", "</think>"]
CHANNEL = ["<|channel>", "<channel|>", "thought"]
END_MARK = "<|im_end|>"

TURN = "<|im_start|> {{ message['role'] }} {{ '\\n' }} %s <|im_end|> {{ '\\n ' }}"
CONTENT = "{{ message['content'] }}"
PROMPT = "{% if add_generation_prompt %}<|im_start|> assistant {{ '\\n ' }}"
CLOSED = "{%% if enable_thinking is defined and not enable_thinking %%}%s {{ '\\n ' }}{%% endif %%}"
THINKS = "<think> {{ '\\n ' }}" + CLOSED % THINK[1]
CHANNELS = "<|channel> thought {{ '\\n ' }}" + CLOSED % CHANNEL[1]
TOOLS = (
    "{% if tools %}<|im_start|> system {{ '\\n' }} "
    "{% for tool in tools %}{{ tool['function']['name'] }} {% endfor %}"
    "<|im_end|> {{ '\\n ' }}{% endif %}"
)
CUT = "{{ message['content'].split('</think>')[-1] }}"
SHOWN = {
    "think": CUT,
    "think-tools": (
        "{% if message['role'] == 'assistant' and loop.index0 > at.last %}"
        "<think> {{ '\\n' }} {{ message['content'] }}{% else %}" + CUT + "{% endif %}"
    ),
    "strip-reasoning": (
        "{% if message['role'] == 'assistant' and loop.index0 < at.last %}"
        + CUT
        + "{% else %}{{ message['content'] }}{% endif %}"
    ),
}
LAST_USER = (
    "{% set at = namespace(last=-1) %}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{% set at.last = loop.index0 %}{% endif %}{% endfor %}"
)
NEEDS_USER = (
    "{% if not messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ raise_exception('no user message') }}{% endif %}"
)


def _template(shown: str, opened: str = "", before: str = "") -> str:
    turns = "{% for message in messages %}" + TURN % shown + "{% endfor %}"
    return TOOLS + before + turns + PROMPT + opened + "{% endif %}"


TEMPLATES = {
    "chatml": _template(CONTENT),
    "channel": _template("{{ message['content'].split('<channel|>')[-1] }}", CHANNELS),
    "needs-user": NEEDS_USER + _template(CONTENT),
    **{name: _template(shown, THINKS, LAST_USER) for name, shown in SHOWN.items()},
}
"""Words and spaces; each text between spaces is a token."""


def texts_of(template: str, size: int) -> list[str]:
    """The words, in the order of their tokens."""
    marks = MARKS + (THINK if template in SHOWN else CHANNEL if template == "channel" else [])
    return [*marks, *(f"w{i}" for i in range(size - len(marks)))]


def write_tokenizer(folder: Path, template: str, size: int) -> None:
    """The files that a tokenizer is loaded from."""
    tokens = {text: token for token, text in enumerate(texts_of(template, size))}
    words = {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}
    model = {"type": "WordLevel", "vocab": tokens, "unk_token": MARKS[0]}
    added = [
        {"id": tokens[text], "content": text, "special": False, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for text in CHANNEL[:2]
        if text in tokens
    ]
    whole = {"version": "1.0", "added_tokens": added, "pre_tokenizer": words, "model": model}
    more = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    (folder / "tokenizer.json").write_text(json.dumps(whole | more))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": END_MARK,
        "unk_token": MARKS[0],
        "chat_template": TEMPLATES[template],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


class Folders:
    """Models on disk, each written once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[str, Path] = {}

    def of(self, model: Mapping[str, Any], template: str, size: int) -> Path:
        """The folder of a model with its tokenizer."""
        name = json.dumps([model, template, size])
        if name not in self._known:
            folder = self._place / str(len(self._known))
            folder.mkdir()
            write_model(folder, model)
            write_tokenizer(folder, template, size)
            self._known[name] = folder
        return self._known[name]
