"""The server's flags: upstream's names, the release's defaults for a server with one slot."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from cachesim.engines.chat import TEMPLATES
from cachesim.engines.option import MOST, listed, option, request_field
from cachesim.errors import OptionError

Drafting: TypeAlias = Literal["draft-mtp", "draft-simple"]
Ngrams: TypeAlias = Literal[
    "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"
]
SpecType: TypeAlias = Literal["none"] | Drafting | Ngrams
CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0"]
Pooling: TypeAlias = Literal["none", "mean", "cls", "last", "rank"]
Endpoint: TypeAlias = Literal["completion", "infill", "embedding", "rerank"]

TRAINED_CONTEXT: Final = 65_536
"""Training context of the toy models, the default of `ctx_size` 0."""

CONTEXT_STEP: Final = 256
"""Contexts are rounded up to multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a server; the defaults are those of `-np 1` (an automatic `-np` is -1)."""

    parallel: int = option(
        "-np, --parallel",
        "number of slots; -1: automatic, four with a unified cache",
        default=1,
        low=-1,
        high=256,
        unit="slots",
        tried=(1, 1, 2, 3),
    )
    kv_unified: bool = option(
        "-kvu, --kv-unified",
        "one pool of cells for all slots instead of an equal share for each",
        default=False,
        tried=(False, True),
    )
    kv_unified_per_slot: int = option(
        "--kv-unified-per-slot",
        "the largest share of a unified cache that one slot may fill, in tokens; 0: no limit",
        default=0,
        unit="tokens",
        since="b10809",
    )
    ctx_size: int = option(
        "-c, --ctx-size",
        "total context, rounded up to a multiple of 256; 0: what the model was trained with",
        default=4096,
        unit="tokens",
        tried=(4096, 1024, 512, 256),
    )
    batch_size: int = option(
        "-b, --batch-size",
        "maximum tokens per decode call",
        default=2048,
        low=1,
        unit="tokens",
        tried=(2048, 256, 64, 32),
    )
    ubatch_size: int = option(
        "-ub, --ubatch-size",
        "maximum tokens per ubatch; 0: the batch size",
        default=512,
        unit="tokens",
        tried=(512, 64, 32, 16),
    )
    ctx_checkpoints: int = option(
        "-ctxcp, --ctx-checkpoints",
        "maximum checkpoints per slot; 0: none",
        default=32,
        high=1 << 16,
        unit="checkpoints",
        tried=(32, 8, 3, 1, 0),
    )
    checkpoint_min_step: int = option(
        "-cms, --checkpoint-min-step",
        "minimum distance between checkpoints",
        default=256,
        unit="tokens",
        since="b9538",
        later={"b9873": 8192},
        tried=(256, 64, 16, 0),
    )
    checkpoint_every_nt: int = option(
        "-cpent, --checkpoint-every-n-tokens",
        "tokens between the checkpoints made during prefill; -1: none",
        default=8192,
        low=-1,
        unit="tokens",
        until="b9294",
        tried=(8192, 64),
    )
    slot_prompt_similarity: float = option(
        "-sps, --slot-prompt-similarity",
        "share of a prompt that a slot must hold to be chosen for it; 0: never compared",
        default=0.1,
        low=0,
        high=1,
        tried=(0.1, 0.0, 0.5, 0.9),
    )
    cache_ram: int = option(
        "-cram, --cache-ram",
        "size of the prompt cache in host memory; 0: no prompt cache, -1: no limit",
        default=8192,
        low=-1,
        unit="MiB",
        tried=(8192, 1, 0, -1),
    )
    cache_reuse: int = option(
        "--cache-reuse",
        "minimum length of a chunk that is moved and reused; 0: none is",
        default=0,
        unit="tokens",
        tried=(0, 4, 16),
    )
    context_shift: bool = option(
        "--context-shift",
        "drop old tokens when the context is full, instead of ending the reply",
        default=False,
        tried=(False, True),
    )
    cache_idle_slots: bool = option(
        "--cache-idle-slots",
        "park idle slots in the prompt cache when a request starts",
        default=True,
        until_then=("b8672", "--clear-idle"),
        tried=(True, False),
    )
    swa_full: bool = option(
        "--swa-full",
        "give window layers as many cells as the others",
        default=False,
        switches_off=False,
        tried=(False, True),
    )
    cache_type_k: CacheType = option(
        "-ctk, --cache-type-k",
        "type of stored keys; here it changes sizes only, not values",
        default="f16",
        choices=get_args(CacheType),
    )
    cache_type_v: CacheType = option(
        "-ctv, --cache-type-v",
        "type of stored values; here it changes sizes only, not values",
        default="f16",
        choices=get_args(CacheType),
    )
    embedding: bool = option(
        "--embeddings",
        "serve embedding requests too; they share the slots",
        default=False,
        switches_off=False,
    )
    pooling: Pooling = option(
        "--pooling",
        "how a prompt's embeddings are pooled; last: prompts are reused, rank: reranking",
        default="none",
        choices=get_args(Pooling),
    )
    sleep_idle_seconds: int = option(
        "--sleep-idle-seconds",
        "after this long without a request the server unloads everything until the next one; -1: "
        "never. No clock runs here: a step says that the server sleeps",
        default=-1,
        low=-1,
        unit="seconds",
    )
    models_max: int = option(
        "--models-max",
        "models that a router has loaded; 0: no limit",
        default=4,
        low=0,
        unit="models",
        rare=True,
    )
    cache_prompt: bool = option(
        "--cache-prompt", "reuse what a slot holds; a request may override it", default=True
    )
    cont_batching: bool = option(
        "-cb, --cont-batching", "prefill new prompts while other slots generate", default=True
    )
    keep: int = option(
        "--keep",
        "tokens at the start that a context shift keeps; -1: the whole prompt",
        default=0,
        low=-1,
        unit="tokens",
    )
    predict: int = option(
        "-n, --predict",
        "maximum tokens of a reply, unless the request says; -1: no limit",
        default=-1,
        low=-1,
        unit="tokens",
    )
    ignore_eos: bool = option(
        # workloads are run with it; the toy vocabulary ends at 2 and 260
        "--ignore-eos",
        "a reply does not end at the end-of-text token (the real server's default is off)",
        default=True,
        switches_off=False,
    )
    chat_template: str = option(
        "--chat-template", "how messages become tokens", default="chatml", choices=tuple(TEMPLATES)
    )
    spec_type: SpecType = option(
        "--spec-type",
        "what drafts tokens: the model's own MTP head, or a second model; of the n-gram types, "
        "ngram-cache with given replies, and the maps' crash after a shift",
        default="none",
        choices=("none", *get_args(Drafting), *get_args(Ngrams)),
        since="b9294",
    )
    spec_draft_n_max: int = option(
        "--spec-draft-n-max", "maximum tokens of a draft", default=3, low=0, high=64, since="b9294"
    )
    spec_draft_n_min: int = option(
        "--spec-draft-n-min",
        "minimum tokens of a draft; a shorter one is not used",
        default=0,
        low=0,
        high=64,
        since="b9294",
    )
    lora: str = option(
        "--lora",
        "adapters, by names of their own, separated by commas; all at strength 1 at the start",
        default="",
        kind="text",
    )
    model_draft: object = option(
        "-md, --model-draft",
        "the second model of spec_type 'draft-simple': the name of a preset",
        default=None,
        kind="any",
        needs="spec_type",
        since="b9294",
        may_be_silent=True,
    )

    def __post_init__(self) -> None:
        if self.parallel == 0:
            msg = "option 'parallel' is 0; write a number of slots, or -1 for the automatic four"
            raise OptionError(msg)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters, in the order of their ids."""
        return listed(self.lora)

    @property
    def n_parallel(self) -> int:
        """Number of slots; four for an automatic number."""
        return 4 if self.parallel < 0 else self.parallel

    @property
    def unified(self) -> bool:
        """True if all slots share a pool of cells, as with an automatic number of slots."""
        return self.kv_unified or self.parallel < 0

    @property
    def drafts(self) -> bool:
        """True if a companion drafts."""
        return self.spec_type in get_args(Drafting)

    @property
    def maps_ngrams(self) -> bool:
        """True if drafts come from a map of n-grams, which records its progress."""
        return self.spec_type in {"ngram-map-k", "ngram-map-k4v"}

    @property
    def context(self) -> int:
        """The requested context."""
        return self.ctx_size or TRAINED_CONTEXT

    @property
    def batch(self) -> int:
        """Maximum tokens of one decode call; on a server that embeds, of a ubatch."""
        whole = self.embedding and self.ubatch_size > 0
        return min(self.batch_size, self.ubatch_size) if whole else self.batch_size

    @property
    def n_batch(self) -> int:
        """Tokens per decode call: at most the requested context."""
        return min(self.context, self.batch)

    @property
    def n_ubatch(self) -> int:
        """Tokens per ubatch."""
        return min(self.n_batch, self.ubatch_size or self.n_batch)

    @property
    def n_ctx_seq(self) -> int:
        """Cells that one sequence can use, before any cap on the slot."""
        whole = _round_up(self.context)
        return whole if self.unified else _round_up(whole // self.n_parallel)

    @property
    def n_ctx(self) -> int:
        """The whole context; rounding up per slot can exceed the requested one."""
        return self.n_ctx_seq if self.unified else self.n_ctx_seq * self.n_parallel

    @property
    def n_ctx_slot(self) -> int:
        """The context of one slot."""
        cap = self.kv_unified_per_slot
        return min(self.n_ctx_seq, cap) if cap > 0 else self.n_ctx_seq


def _round_up(count: int) -> int:
    return -(-count // CONTEXT_STEP) * CONTEXT_STEP


FIELDS: Final = (
    request_field(
        "endpoint",
        "choice",
        "what is asked: only completions search the prompt cache and make checkpoints",
        default="completion",
        choices=get_args(Endpoint),
    ),
    request_field(
        "input_suffix",
        "any",
        "of infill: the tokens after the gap, of which the prompt is what stands before it",
    ),
    request_field(
        "n_predict",
        "whole number",
        "like `predict`, passed to the server as it is: below -1 is one token, or refused",
        low=-MOST,
        unit="tokens",
    ),
    request_field(
        "cache_prompt", "yes or no", "set by the request itself; overrides the flag --cache-prompt"
    ),
    request_field(
        "add_generation_prompt", "yes or no", "for a chat: whether the template opens the reply"
    ),
    request_field(
        "tools",
        "texts",
        "for a chat: what the model may call; a template shows it before the messages",
    ),
    request_field(
        "n_keep", "whole number", "like the flag --keep, for this request", low=-1, unit="tokens"
    ),
    request_field(
        "n_discard",
        "whole number",
        "tokens that a context shift drops; 0: half of what --keep does not keep",
        default=0,
        unit="tokens",
    ),
    request_field(
        "n_cache_reuse",
        "whole number",
        "like the flag --cache-reuse, for this request",
        unit="tokens",
    ),
    request_field("ignore_eos", "yes or no", "like the flag --ignore-eos, for this request"),
    request_field(
        "prompt_string",
        "yes or no",
        "the prompt is sent as text, which may be empty, instead of token ids",
    ),
    request_field(
        "lora", "any", "strengths of adapters for this request, as tables with 'id' and 'scale'"
    ),
    request_field(
        "message_delimiters",
        "any",
        "by which token texts messages begin, as tables with 'role' and 'delimiter'",
        since="b9873",  # #24176
    ),
    request_field(
        "message_spans",
        "any",
        "where messages begin, as tables with 'role' and 'start'; offsets are cachesim's own",
        since="b9538",  # #22929
    ),
)
"""Further fields of a request."""
