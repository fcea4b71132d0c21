"""The memory of a model and its size (`llama_model::create_memory`, `llama_context`)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.blob import RowBytes, row_bytes
from cachesim.engines.llamacpp.memory.cells import NO_WINDOW, WindowMask
from cachesim.engines.llamacpp.memory.context import OK, Context
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory, WindowPair
from cachesim.engines.llamacpp.memory.module import Memory
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.errors import OptionError
from cachesim.model.arithmetic import LayerShape, Network, Place
from cachesim.units import Count

PAD: Final = 256
"""Multiple in which cells are allocated."""


def padded(n: int) -> int:
    """The next multiple of 256."""
    return -(-n // PAD) * PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParams:
    """The parameters of a context, under upstream's names and server defaults."""

    n_ctx: Count = Count(4096)
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    kv_unified: bool = False
    swa_full: bool = False
    swa_padding: int = 0  # KoboldCpp's
    n_rs_seq: int = 0
    type_k: str = "f16"
    type_v: str = "f16"


def create_context(network: Network, params: ContextParams, rules: MemoryRules) -> Context:
    """Follows the constructor of `llama_context`: sizes, padding, then the memory.

    The batch is limited to the context before that is padded; with a stream per sequence the
    padding rounds every share up, so the whole may become larger than requested.
    """
    if params.n_ctx < 1 or params.n_seq_max < 1 or params.n_batch < 1:
        raise OptionError("a context needs n_ctx, n_batch and n_seq_max of at least 1")
    n_batch = min(params.n_ctx, params.n_batch)
    n_ubatch = min(n_batch, params.n_ubatch or n_batch)
    n_ctx = padded(params.n_ctx)
    n_ctx_seq = n_ctx if params.kv_unified else padded(n_ctx // params.n_seq_max)
    if not params.kv_unified:
        n_ctx = n_ctx_seq * params.n_seq_max
    n_rs_seq = rollback_depth(network, params.n_rs_seq, rules)
    swa_cells = n_ctx_seq
    if not params.swa_full:
        n_swa = network.spec.window
        sequences = params.n_seq_max if params.kv_unified else 1
        # Room for the window of every sequence and one ubatch; older cells stay until a search
        # reaches them.
        swa_cells = padded(min(n_ctx_seq, n_swa * sequences + n_ubatch)) + params.swa_padding
    memory = create_memory(
        network,
        rules,
        types=(params.type_k, params.type_v),
        n_seq_max=params.n_seq_max,
        unified=params.kv_unified,
        cells=n_ctx_seq,
        swa_cells=min(n_ctx_seq, swa_cells),
        n_rs_seq=n_rs_seq,
    )
    return Context(
        network,
        memory,
        rules=rules,
        n_ctx=n_ctx,
        n_ctx_seq=n_ctx_seq,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq_max=params.n_seq_max,
        unified=params.kv_unified,
        n_rs_seq=n_rs_seq,
        sections=has_position_sections(network),
    )


def rollback_depth(network: Network, wanted: int, rules: MemoryRules) -> int:
    """`n_rs_seq`, or 0 for an architecture without rollback."""
    rows = [s for s in network.shapes if s.place == "recurrent" and not s.marks]
    kinds = {network.spec.kind(s.layer) for s in rows}
    return wanted if kinds and kinds <= rules.rollback_layers else 0


def has_position_sections(network: Network) -> bool:
    """True if a token's position has several sections (M-RoPE), as in the Qwen 3.5 family.

    Such positions cannot be moved, and each saved cell carries them as extra bytes.
    """
    return "delta" in network.spec.layers


def create_memory(
    network: Network,
    rules: MemoryRules,
    *,
    n_seq_max: int,
    unified: bool,
    cells: int,
    swa_cells: int,
    n_rs_seq: int,
    types: tuple[str, str] = ("f16", "f16"),
) -> Memory:
    """A memory by the model's layers: recurrent, hybrid, window pair, or plain.

    A companion's network has attention layers only, so its cache is plain.

    Upstream: `llama_model::create_memory`.
    """
    shapes: dict[Place, list[LayerShape]] = {"attention": [], "window": [], "recurrent": []}
    for shape in network.shapes:
        shapes[shape.place].append(shape)
    sections = has_position_sections(network)
    sizes = {
        shape.layer: RowBytes() if shape.marks else row_bytes(network.spec, shape.layer, *types)
        for shape in network.shapes
    }

    def cache(place: Place, n_cells: int, mask: WindowMask) -> AttentionCache:
        return AttentionCache(
            rules,
            shapes[place],
            sizes,
            n_seq_max=n_seq_max,
            unified=unified,
            cells=n_cells,
            mask=mask,
            rotate=network.rotate,
            sections=sections,
            fixed=types[0] == "bf16",
        )

    def attention() -> AttentionCache | WindowPair:
        base = cache("attention", cells, NO_WINDOW)
        if not shapes["window"]:
            return base
        mask = WindowMask(kind="standard", n_swa=network.spec.window)
        return WindowPair(base, cache("window", swa_cells, mask))

    if not shapes["recurrent"]:
        return attention()
    recurrent = RecurrentMemory(
        rules,
        shapes["recurrent"],
        sizes,
        n_seq_max=n_seq_max,
        n_rs_seq=n_rs_seq,
        n_layers=len(network.spec.layers),
    )
    if not shapes["attention"] and not shapes["window"]:
        return recurrent
    return HybridMemory(attention(), recurrent)


class SeqRm(IntEnum):
    """The removable part of a sequence, under upstream's numbers."""

    NO = 0
    PART = 1
    FULL = 2
    RS = 3


PROBE: Final = 2
"""Number of tokens in the trial decode."""


def seq_rm_type(context: Context) -> SeqRm:
    """The result of `can_seq_rm` for a new context, without a trial decode.

    A property test compares both.
    """
    # Trap: a batch of one token has no room for the trial, which ends the process before the server
    # starts.
    if context.n_batch < PROBE:
        return can_seq_rm(context)
    if context.n_rs_seq > 0 and context.rules.probe != "unknown":
        return SeqRm.RS
    # Recurrent rows cannot be cut, everything else can; a context with more planes rolls back by as
    # many tokens.
    recurrent = isinstance(context.memory, RecurrentMemory | HybridMemory)
    return SeqRm.FULL if recurrent else SeqRm.PART


def can_seq_rm(context: Context) -> SeqRm:
    """Test by a trial: decode two tokens, remove the second one, clear the memory.

    Upstream: `common_context_can_seq_rm`.
    """
    # Later releases know it without a decode, and clear nothing.
    if context.n_rs_seq > 0 and context.rules.probe == "at-once":
        return SeqRm.RS
    context.clear(data=True)
    answer = SeqRm.NO
    if context.decode(Batch.of((0,) * PROBE, start=0)) == OK:
        if context.n_rs_seq > 0 and context.rules.probe == "after-probe":
            answer = SeqRm.RS
        else:
            # Trap: a window cache returns PART, although old positions may be missing after a cut.
            answer = SeqRm.PART if context.seq_rm(0, 1, -1) else SeqRm.FULL
    context.clear(data=True)
    return answer
