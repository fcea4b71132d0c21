"""The server's options under upstream's flag names; those of its parent are declared there."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from cachesim.engines.chat import TEMPLATES
from cachesim.engines.llamacpp import options as parent
from cachesim.engines.option import MOST, like, option, request_field
from cachesim.errors import OptionError

Companion: TypeAlias = Literal["none", "attn", "strict_tail", "window"]
RollbackMode: TypeAlias = Literal["auto", "per-step", "gpu-fallback", "cpu"]
Eviction: TypeAlias = Literal["fifo", "variance"]

SEED: Final = "d2da6da05"
LATER: Final = "8337e4cd3"
MOST_CELLS: Final = 1 << 20

CONTEXT_STEP: Final = 256
"""The context is padded to a multiple of this, with flash attention by default (`get_padding`)."""


LEAST_BATCH: Final = 16
"""A smaller `--batch-size` is raised to this (`GGML_KQ_MASK_PAD`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a server."""

    parallel: int = like(
        parent.Options, "parallel", about="how many slots", low=1, high=64, tried=(1, 1, 2)
    )
    ctx_size: int = like(
        parent.Options,
        "ctx_size",
        about="total context, rounded up to a multiple of 256, then shared equally by the slots",
        low=1,
        high=MOST_CELLS,
        tried=(4096, 1024),
    )
    batch_size: int = like(
        parent.Options,
        "batch_size",
        about="maximum tokens per decode call; at least 16",
        high=MOST_CELLS,
    )
    ubatch_size: int = like(
        parent.Options, "ubatch_size", about="maximum tokens per ubatch", low=1, high=MOST_CELLS
    )
    ctx_checkpoints: int = like(
        parent.Options,
        "ctx_checkpoints",
        flag="-ctx-ckpt, --ctx-checkpoints",
        until_then=(SEED, "--ctx-checkpoints"),
    )
    ctx_checkpoints_interval: int = option(
        "-ctx-ckpt-i, --ctx-checkpoints-interval",
        "tokens between checkpoints; 0: none by distance",
        until_then=(SEED, "--ctx-checkpoints-interval"),
        default=512,
        unit="tokens",
        tried=(512, 64, 16),
    )
    ctx_checkpoints_tolerance: int = option(
        "-ctx-ckpt-t, --ctx-checkpoints-tolerance",
        "a checkpoint is made this many tokens before a prompt's end; 0: at its end",
        until_then=(SEED, "--ctx-checkpoints-tolerance"),
        default=5,
        unit="tokens",
        tried=(5, 8, 1, 0),
    )
    ctx_checkpoints_eviction: Eviction = option(
        "-ctx-ckpt-e, --ctx-checkpoints-eviction",
        "which checkpoint is evicted: the oldest, or the one whose loss leaves the rest best "
        "spread",
        default="fifo",
        choices=get_args(Eviction),
        since=LATER,
        later={LATER: "variance"},
    )
    slot_prompt_similarity: float = like(
        parent.Options, "slot_prompt_similarity", tried=(0.1, 0.0, 0.5)
    )
    cache_ram: int = like(parent.Options, "cache_ram", tried=(8192, 1, 0))
    cache_ram_similarity: float = option(
        "-crs, --cache-ram-similarity",
        "a slot that would keep less than this share is saved to the prompt cache first",
        default=0.5,
        low=0,
        high=1,
        tried=(0.5, 0.2, 0.8),
    )
    cache_ram_n_min: int = option(
        "-cram-n-min, --cache-ram-n-min",
        "fewest tokens worth parking; -1 parks nothing (it is compared as unsigned)",
        default=0,
        low=-1,
        unit="tokens",
    )
    cache_ram_reuse_n_min: int = option(
        "--cache-ram-reuse-n-min",
        "shortest common prefix for which a prompt-cache entry is loaded",
        default=0,
        unit="tokens",
        patch="1877",
    )
    reasoning_tokens: str = option(
        "--reasoning-tokens",
        "what is skipped when token lists are compared: auto, none, or BEGIN,END",
        default="auto",
    )
    context_shift: bool = like(
        parent.Options,
        "context_shift",
        default=True,
        tried=(),
        spelled={True: "{flag} on", False: "--no-context-shift"},
    )
    recurrent_ckpt_mode: RollbackMode = option(
        "--spec-ckpt-mode",
        "how recurrent states are rolled back after a draft",
        until_then=(SEED, "--recurrent-ckpt-mode"),
        default="auto",
        choices=get_args(RollbackMode),
    )
    companion: Companion = option(  # the memory model of the MTP companion
        "--spec-type mtp",
        "memory of the companion that drafts; none: no drafts; strict_tail: none that a server has",
        until_then=(SEED, "-mtp"),
        spelled={"attn": "{flag}", "window": "{flag} --swa-compress"},
        default="none",
        choices=get_args(Companion),
        tried=("none", "attn"),  # a window is DeepSeek 4's alone, which no search draws
        arrived={"window": LATER},
    )
    companion_window: int = option(
        about="window of the companion, if its memory is a window: of the model, not a flag",
        default=128,
        low=1,
        high=MOST_CELLS,
        unit="tokens",
        since=LATER,
    )
    draft_max: int = option(
        "--spec-type mtp:n_max",
        "maximum tokens of a draft",
        until_then=(SEED, "--draft, --draft-max"),
        default=16,
        low=0,
        high=1024,
    )
    draft_min: int = option(
        "--spec-type mtp:n_min",
        "minimum tokens of a draft; a shorter one is not used",
        until_then=(SEED, "--draft-min"),
        default=0,
        low=0,
        high=1024,
    )
    draft_p_min: float = option(
        "--spec-type mtp:p_min",
        "minimum probability: a draft ends before a token below it, but has at least one",
        until_then=(SEED, "--draft-p-min"),
        default=0.75,
        low=0,
        high=1,
    )
    chat_template: str = option(
        "--chat-template",
        "decides which token texts open and close reasoning",
        default="chatml",
        choices=tuple(TEMPLATES),
    )

    def __post_init__(self) -> None:
        if self.companion != "none" and self.parallel > 1:
            raise OptionError(
                "a companion works with parallel = 1 only: the server refuses -mtp with more slots"
            )
        if self.tags == ("", ""):
            raise OptionError(
                f"reasoning_tokens is {self.reasoning_tokens!r}, two empty tags, which the search "
                'for blocks would match forever; write "<think>,</think>", "auto" or "none"'
            )

    @property
    def n_ctx(self) -> int:
        """The whole context: `--ctx-size` is rounded up before the slots share it."""
        return -(-self.ctx_size // CONTEXT_STEP) * CONTEXT_STEP

    @property
    def n_batch(self) -> int:
        """Tokens of a batch: at most the context, at least the padding of an attention mask."""
        return max(LEAST_BATCH, min(self.batch_size, self.n_ctx))

    @property
    def n_ctx_slot(self) -> int:
        """The context of one slot."""
        return self.n_ctx // self.parallel

    @property
    def tags(self) -> tuple[str, str] | None:
        """The tags of a reasoning block, or None when exclusion is off."""
        if self.reasoning_tokens == "none":
            return None
        if self.reasoning_tokens == "auto":
            return "<think>", "</think>"
        opening, _, closing = self.reasoning_tokens.partition(",")
        return opening, closing


FIELDS: Final = (
    request_field(
        "n_keep",
        "whole number",
        "tokens that a context shift keeps; if not given, those of the slot's last request "
        "(an oddity)",
        low=-1,
        unit="tokens",
    ),
    request_field(
        "n_discard",
        "whole number",
        "tokens that a context shift drops; 0: half of what is not kept",
        default=0,
        unit="tokens",
    ),
    request_field("cancel_after_ubatches", "whole number", low=0, high=MOST, internal=True),
    request_field("before_first_idle", "yes or no", default=False, internal=True),
)
"""Further fields of a request; the last two simulate when its client leaves, or comes."""
