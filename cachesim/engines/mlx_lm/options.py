"""The options of `mlx_lm.server` that decide what is cached, under upstream's names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from cachesim.engines.byte_tokenizer import ByteTokenizer
from cachesim.engines.chat import ChatTokenizer
from cachesim.engines.chat_templates import TEMPLATES
from cachesim.engines.mlx_lm.server.rules import (
    COMMON_OPTIONS,
    SIZE_OPTIONS,
    STEP_OPTION,
    ServerRules,
)
from cachesim.engines.mlx_lm.server.word_tokenizer import WORD_TEMPLATES, WordTokenizer
from cachesim.errors import OptionError
from cachesim.model.spec import F16_BYTES

SINCE: Final = {
    **dict.fromkeys(sorted(COMMON_OPTIONS), "0.30.6"),
    **dict.fromkeys(sorted(SIZE_OPTIONS | STEP_OPTION), "0.31.0"),
}
"""The first release that has an option."""

TOKENIZERS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[str, int], ChatTokenizer]]]] = {
    "bytes": (tuple(TEMPLATES), lambda template, _size: ByteTokenizer(template)),
    "words": (tuple(WORD_TEMPLATES), WordTokenizer),
}
"""Name -> the chat templates it has, and how to build it for a template and a vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxOptions:
    """What the server was started with; the defaults are upstream's.

    `tokenizer` names one of `TOKENIZERS` or is a `ChatTokenizer`; `chat_template` one of its
    templates. Both, and the element size, are the model's business in the real server.
    """

    prompt_cache_size: int = 10
    prompt_cache_bytes: int | None = None
    prefill_step_size: int = 2048
    prompt_concurrency: int = 8
    decode_concurrency: int = 32
    max_tokens: int = 512
    chat_template: str = "chatml"
    tokenizer: "str | ChatTokenizer" = "bytes"
    element_bytes: int = F16_BYTES  # of a key or value: 4 for a model in float32
    provenance: bool = True  # write down which tokens every state has folded in

    @classmethod
    def read(
        cls, given: Mapping[str, Any], rules: ServerRules, *, vocabulary: int
    ) -> "tuple[MlxOptions, ChatTokenizer]":
        """Check what a user asked for against what the release has."""
        known = {each.name for each in fields(cls)}
        for name, value in given.items():
            if name not in known:
                msg = f"mlx-lm's server has no option {name!r}; it has {', '.join(sorted(known))}"
                raise OptionError(msg)
            if name in SINCE and name not in rules.options:
                msg = f"this release has no option {name!r}: it came with {SINCE[name]}"
                raise OptionError(msg)
            _check_number(name, value)
        options = cls(**given)
        return options, _tokenizer(options, vocabulary)


def _check_number(name: str, value: object) -> None:
    if name in {"chat_template", "tokenizer", "provenance"} or (
        name == "prompt_cache_bytes" and value is None
    ):
        return
    least = 0 if name in SIZE_OPTIONS else 1
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        msg = f"option {name!r} is {value!r}: write an integer that is at least {least}"
        raise OptionError(msg)


def _tokenizer(options: MlxOptions, vocabulary: int) -> ChatTokenizer:
    if not isinstance(options.tokenizer, str):
        return options.tokenizer
    if options.tokenizer not in TOKENIZERS:
        known = ", ".join(TOKENIZERS)
        msg = f"there is no tokenizer {options.tokenizer!r}; there are {known}"
        raise OptionError(msg)
    templates, build = TOKENIZERS[options.tokenizer]
    if options.chat_template not in templates:
        msg = (
            f"the tokenizer {options.tokenizer!r} has no chat template {options.chat_template!r}; "
            f"it has {', '.join(templates)}"
        )
        raise OptionError(msg)
    return build(options.chat_template, vocabulary)
