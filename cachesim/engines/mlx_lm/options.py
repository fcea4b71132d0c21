"""The options of `mlx_lm.server` that affect the cache, under upstream's names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cachesim.engines.chat import TEMPLATES, ByteTokenizer, ChatTokenizer
from cachesim.engines.mlx_lm.server.word_tokenizer import WORD_TEMPLATES, WordTokenizer
from cachesim.engines.option import MOST_BYTES, option, request_field
from cachesim.errors import OptionError
from cachesim.model import recall
from cachesim.model.presets import PRESETS, tiny
from cachesim.model.spec import F16_BYTES, F32_BYTES, ModelSpec

TOKENIZERS: Final[
    Mapping[str, tuple[tuple[str, ...], Callable[[str, ModelSpec], ChatTokenizer]]]
] = {
    "bytes": (
        tuple(TEMPLATES),
        lambda template, spec: ByteTokenizer(template, recall.TEXTS if spec.recall else {}),
    ),
    "words": (
        tuple(WORD_TEMPLATES),
        lambda template, spec: WordTokenizer(template, spec.vocabulary),
    ),
}
"""Name -> its chat templates, and its constructor for a template and a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxOptions:
    """Options of the server; the defaults are upstream's.

    `tokenizer` names one of `TOKENIZERS` or is a `ChatTokenizer`; in the real server the model
    determines it and the element size. Programs set them, and `provenance`.
    """

    prompt_cache_size: int = option(
        "--prompt-cache-size",
        "maximum number of stored conversations",
        default=10,
        unit="entries",
        since="after-906",
        tried=(10, 3, 1),
    )
    prompt_cache_bytes: int | None = option(
        "--prompt-cache-bytes",
        "total size of stored conversations; if not given: no limit",
        default=None,
        kind="size",
        high=MOST_BYTES,
        unit="bytes",
        since="after-906",
        may_be_silent=True,
    )
    prefill_step_size: int = option(
        "--prefill-step-size",
        "maximum tokens per prefill step",
        default=2048,
        low=1,
        unit="tokens",
        since="0.31.0",
        tried=(2048, 64, 16),
    )
    prompt_concurrency: int = option(
        "--prompt-concurrency",
        "maximum prompts that are prefilled together",
        default=8,
        low=1,
        unit="prompts",
        since="0.30.6",
        tried=(8, 2, 1),
    )
    decode_concurrency: int = option(
        "--decode-concurrency",
        "maximum replies that are generated together",
        default=32,
        low=1,
        unit="replies",
        since="0.30.6",
        tried=(32, 2, 1),
    )
    kv_bits: int | None = option(
        "--kv-bits",
        "bits per stored key or value; if not given, they are not quantised. With it, no batches",
        default=None,
        kind="whole number",
        low=2,
        high=8,
        unit="bits",
        since="0.32.0",
        may_be_silent=True,
    )
    kv_group_size: int = option(
        "--kv-group-size",
        "numbers that share a scale",
        default=64,
        low=32,
        high=128,
        unit="numbers",
        since="0.32.0",
        needs="kv_bits",
    )
    quantized_kv_start: int = option(
        "--quantized-kv-start",
        "number of tokens after which a layer is quantised",
        default=5000,
        unit="tokens",
        since="0.32.0",
        needs="kv_bits",
    )
    draft_model: str | None = option(
        "--draft-model",
        "the draft model: the name of a preset, or self. With it, no batches",
        default=None,
        kind="choice",
        choices=("self", *PRESETS),
        may_be_silent=True,
    )
    num_draft_tokens: int = option(
        "--num-draft-tokens",
        "maximum tokens per draft",
        default=3,
        high=64,
        unit="tokens",
        tried=(3, 1),
    )
    max_tokens: int = option(
        "--max-tokens",
        "maximum tokens of a reply, unless the request says",
        default=512,
        low=1,
        unit="tokens",
    )
    chat_template: str = option(
        "--chat-template",
        "how messages become tokens",
        default="chatml",
        kind="text",  # depends on the tokenizer
        choices=tuple(TEMPLATES),
    )
    tokenizer: object = option(default="bytes", kind="any", internal=True)
    element_bytes: int = option(  # of a key or value: 4 for a model in float32
        default=F16_BYTES, low=F16_BYTES, high=F32_BYTES, internal=True
    )
    provenance: bool = option(  # record the tokens of every state
        default=True, internal=True
    )

    def draft_spec(self, model: ModelSpec) -> ModelSpec | None:
        """The draft model: a small one of a preset with the same vocabulary, or the model
        itself.
        """
        if self.draft_model is None or self.draft_model == "self":
            return None if self.draft_model is None else model
        return tiny(self.draft_model, vocabulary=model.vocabulary, seed=model.seed + 1)

    def chat_tokenizer(self, spec: ModelSpec) -> ChatTokenizer:
        """The tokenizer of the options, with its chat template."""
        if not isinstance(self.tokenizer, str):
            if not isinstance(self.tokenizer, ChatTokenizer):
                msg = f"option 'tokenizer' is {self.tokenizer!r}; write {' or '.join(TOKENIZERS)}"
                raise OptionError(msg)
            return self.tokenizer
        if self.tokenizer not in TOKENIZERS:
            known = ", ".join(TOKENIZERS)
            raise OptionError(f"there is no tokenizer {self.tokenizer!r}; there are {known}")
        templates, build = TOKENIZERS[self.tokenizer]
        if self.chat_template not in templates:
            raise OptionError(
                f"option 'chat_template' is {self.chat_template!r}; "
                f"write one of {', '.join(templates)}"
            )
        return build(self.chat_template, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOptions(MlxOptions):
    """Options of a server built on mlx-lm's caches: `mlx_lm.server`'s own flags are none of its."""

    prompt_cache_size: int = option(default=10, internal=True)
    prompt_cache_bytes: int | None = option(default=None, kind="size", internal=True)
    prefill_step_size: int = option(
        "prefill_step_size",
        "maximum tokens per prefill step",
        default=2048,
        low=1,
        unit="tokens",
        tried=(2048, 64, 16),
    )
    prompt_concurrency: int = option(default=8, internal=True)
    decode_concurrency: int = option(default=32, internal=True)
    kv_bits: int | None = option(default=None, kind="whole number", internal=True)
    kv_group_size: int = option(default=64, internal=True)
    quantized_kv_start: int = option(default=5000, internal=True)
    draft_model: str | None = option(
        default=None, kind="choice", choices=("self", *PRESETS), internal=True
    )
    num_draft_tokens: int = option(default=3, internal=True)


FIELDS: Final = (
    request_field(
        "seed", "whole number", "a request with a seed is served alone, on a different path"
    ),
    request_field("stop_words", "texts", "texts that end the reply"),
    request_field(
        "stream",
        "yes or no",
        "whether the reply is streamed: of no effect on mlx-lm's own server",
    ),
    request_field(
        "tools",
        "texts",
        "for a chat: what the model may call; the template puts these texts before the messages",
    ),
    request_field(
        "chat_template_kwargs",
        "any",
        "arguments of the chat template: { enable_thinking = false } closes the thoughts",
        since="0.30.6",  # #829
    ),
)
"""Request fields that affect the cache; those of sampling do not."""

SERVED_FIELDS: Final = tuple(replace(field, since="") for field in FIELDS)
"""The same of a server built on mlx-lm's caches, whose releases have other names."""
