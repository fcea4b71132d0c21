"""Causes of lost reuse in vLLM, one for each branch."""

from typing import Final

from cachesim.engines.causes import Cause, declared, last_computed

CACHE_NOT_READ: Final = Cause(
    id="cache-not-read",
    sentence="the request does not read the prefix cache",
    about="Caching is off, or the request asks for something that needs every token computed.",
)
LAST_TOKEN: Final = last_computed(
    "A hit ends at the last token but one (`num_tokens - 1`), before it is cut to blocks."
)
WHOLE_BLOCKS: Final = Cause(
    id="whole-blocks",
    sentence="a hit is a multiple of {block} tokens",
    about=(
        "Only a full block has a hash; several groups agree only on multiples of the least "
        "common multiple of their block sizes. A smaller `prefix_match_unit` can help hybrid "
        "models."
    ),
    fields=("block",),
)
ATTENTION_EVICTED: Final = Cause(
    id="attention-evicted",
    sentence="attention's blocks after {found} of {wanted} tokens were evicted for other requests",
    about=(
        "A free block loses its hash when another request takes it; the block freed first is taken "
        "first."
    ),
    fields=("wanted", "found", "block"),
)
ATTENTION_MISSING: Final = Cause(
    id="attention-missing",
    sentence="attention's blocks after {found} of {wanted} tokens have no hash",
    about=(
        "A block gets its hash when it is full, and not all computed tokens fill one. A reset "
        "removes all hashes."
    ),
    fields=("wanted", "found", "block"),
)
WINDOW_EVICTED: Final = Cause(
    id="window-evicted",
    sentence=(
        "the window before {wanted} tokens is gone: its blocks were evicted; the nearest ends at "
        "{found}"
    ),
    about="A window needs its last blocks without a gap; they were freed early and evicted.",
    fields=("wanted", "found", "block"),
)
WINDOW_MISSING: Final = Cause(
    id="window-missing",
    sentence="no window ends at {wanted} tokens; the nearest complete one ends at {found}",
    about="Sparse retention keeps only the blocks before a few positions: prompt end and junction.",
    fields=("wanted", "found", "block"),
)
STATE_EVICTED: Final = Cause(
    id="state-evicted",
    sentence=(
        "the state after {wanted} tokens was evicted for other requests; the nearest is after "
        "{found}"
    ),
    about="A state is in one free block once its request has moved on; eviction removes all of it.",
    fields=("wanted", "found", "block"),
)
STATE_MISSING: Final = Cause(
    id="state-missing",
    sentence="no state is kept after {wanted} tokens; the nearest is after {found}",
    about=(
        "Only the end of a prefill chunk leaves a state, and sparse retention keeps those at the "
        "prompt's end and at junctions. The second request that shares a prefix saves one there. A "
        "reset removes all hashes."
    ),
    fields=("wanted", "found", "block"),
)
LOOK_AHEAD_BLOCK: Final = Cause(
    id="look-ahead-block",
    sentence="the drafter needs the last block's hidden states, so its {block} tokens are dropped",
    about="EAGLE and MTP heads read the target's hidden states, which no block keeps.",
    fields=("kind", "block"),
)
GRANTS_MORE: Final = Cause(
    id="grants-more",
    sentence="the {kind} group returns a hit of {answer} tokens, longer than requested",
    about=(
        "A recurrent group that looks one block ahead and drops nothing (#43559), or null blocks "
        "of chunked attention that count as present."
    ),
    fields=("kind", "block", "answer"),
)
GROUPS_DISAGREE: Final = Cause(
    id="groups-disagree",
    sentence="all groups together agree on less than each alone ({answers})",
    about="Each group may lower the candidate, and the others are asked again from there.",
    fields=("answers",),
)
STATE_FORGIVEN: Final = Cause(
    id="state-forgiven",
    sentence="no state was found, but attention's hit of {answer} tokens is used anyway",
    about=(
        "The defect of #43090, and of 0.24 beside a store that brings nothing (#48195): recurrent "
        "layers resume from whatever the new block holds."
    ),
    fields=("answer",),
)
FROM_STORE: Final = Cause(
    id="from-store",
    sentence="an external store promises {tokens} more tokens",
    about="A KV connector brings blocks that the pool does not have.",
    fields=("tokens",),
)

FROM_HOST: Final = Cause(
    id="from-host",
    sentence="the host has {tokens} more tokens, which are loaded",
    about="With `kv_offloading_size` the blocks of prompts are copied to the host, and loaded when"
    " the pool no longer has them.",
    fields=("tokens",),
)

LOAD_FAILED: Final = Cause(
    id="load-failed",
    sentence="the load from the store failed: {valid} tokens of the prompt are valid",
    about="Under `kv_load_failure_policy` recompute, tokens from the first failed block on count as"
    " not computed.",
    fields=("valid",),
)

CAUSES: Final = declared(globals())
