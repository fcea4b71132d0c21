"""A tokenizer of words as the files of a model: mlx-lm's own loader reads them.

Runs in a release's environment, where nothing of cachesim is; it shares no line with the
simulator's own tokenizer, so the two can disagree.
"""

import json
from pathlib import Path

MARKS = ["<unk>", "<|im_start|>", "\n", "<|im_end|>", "system", "user", "assistant", "tool"]
THINK = ["<think>", "</think>"]
CHANNEL = ["<|channel>", "<channel|>", "thought"]
END_MARK = "<|im_end|>"

TURN = "<|im_start|> {{ message['role'] }} {{ '\\n' }} %s <|im_end|> {{ '\\n ' }}"
AS_SENT = "{% for message in messages %}" + TURN % "{{ message['content'] }}" + "{% endfor %}"
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
END = "{% endif %}"

TEMPLATES = {
    "chatml": TOOLS + AS_SENT + PROMPT + END,
    "channel": TOOLS
    + "{% for message in messages %}"
    + TURN % "{{ message['content'].split('<channel|>')[-1] }}"
    + "{% endfor %}"
    + PROMPT
    + CHANNELS
    + END,
    "needs-user": NEEDS_USER + TOOLS + AS_SENT + PROMPT + END,
    **{
        name: TOOLS
        + LAST_USER
        + "{% for message in messages %}"
        + TURN % shown
        + "{% endfor %}"
        + PROMPT
        + THINKS
        + END
        for name, shown in SHOWN.items()
    },
}
"""Words and blanks; what is between the blanks is a token."""


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
