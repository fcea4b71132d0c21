"""Opening a server: contexts, slots and the prompt cache, as the flags say."""

from cachesim.engines.llamacpp.contexts import Contexts
from cachesim.engines.llamacpp.drafter import open_drafter
from cachesim.engines.llamacpp.memory.capability import SeqRm, seq_rm_type
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.errors import UpstreamAbort
from cachesim.model.arithmetic import Network
from cachesim.units import Count

MEBIBYTE = 1 << 20
RESERVE = "llama_context::graph_reserve"


def open_server(rules: ServerRules, network: Network, options: Options) -> ServerContext:
    """Start a server with a model already loaded (upstream: `load_model` and `init`)."""
    if rules.loop.reserve_aborts:
        check_reserve(options)
    n_rs_seq = options.spec_draft_n_max if options.spec_type == "draft-mtp" else 0
    params = context_params(options, n_rs_seq)
    target = create_context(network, params, rules.memory)
    lora = (1.0,) * len(options.adapters)
    slots = [Slot(number, options.n_ctx_slot) for number in range(options.n_parallel)]
    for slot in slots:
        slot.lora = lora
    drafter = open_drafter(options, params, network, rules)
    return ServerContext(
        rules=rules,
        options=options,
        network=network,
        contexts=Contexts(
            target,
            None if drafter is None else drafter.context,
            saves_companion=rules.slots.companion_is_saved,
            refused_cut_aborts=rules.loop.refused_cut_aborts,
        ),
        seq_rm_type=seq_rm_type(target),
        n_swa=n_swa(options, rules, network),
        can_shift=target.can_shift,
        slots=slots,
        lora=lora,
        cache=open_prompt_cache(options, rules),
        drafter=drafter,
        companion_type=SeqRm.NO if drafter is None else drafter.seq_rm_type,
    )


def check_reserve(options: Options) -> None:
    """Refuse flags with which the real process ends as it starts.

    Upstream: `graph_reserve`. A batch holds a token of every slot; where embeddings are averaged,
    an ubatch holds as many of one slot as of another.
    """
    slots = options.n_parallel
    if options.n_batch < slots:
        why = f"{options.n_batch} tokens of a batch for {slots} slots (n_outputs_max)"
        raise UpstreamAbort(RESERVE, why)
    averages = options.embedding and options.pooling == "mean"
    if averages and options.n_ubatch % slots:
        why = f"--pooling mean: {slots} slots do not divide an ubatch of {options.n_ubatch} tokens"
        raise UpstreamAbort(RESERVE, f"{why} (ggml_can_mul_mat)")


def context_params(options: Options, n_rs_seq: int = 0) -> ContextParams:
    """The parameters of a context."""
    return ContextParams(
        n_ctx=Count(options.context),
        n_batch=options.batch,
        n_ubatch=options.ubatch_size,
        n_seq_max=options.n_parallel,
        kv_unified=options.unified,
        swa_full=options.swa_full,
        n_rs_seq=n_rs_seq,
        type_k=options.cache_type_k,
        type_v=options.cache_type_v,
    )


def n_swa(options: Options, rules: ServerRules, network: Network) -> int:
    """The window that the server reckons with."""
    hidden = options.swa_full and rules.reuse.swa_full_hides_window
    return 0 if hidden else window_of(network)


def window_of(network: Network) -> int:
    """The model's sliding window; 0 where no layer has one."""
    windowed = any(shape.place == "window" for shape in network.shapes)
    return network.spec.window if windowed else 0


def open_prompt_cache(options: Options, rules: ServerRules) -> PromptCache | None:
    """`--cache-ram`: 0 is none, -1 has no byte limit but is still limited to the context."""
    if options.cache_ram == 0:
        return None
    limit = max(0, options.cache_ram) * MEBIBYTE
    return PromptCache(rules.cache, limit_size=limit, limit_tokens=options.n_ctx)
