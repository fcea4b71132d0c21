"""SGLang's `Family`: the entry for tools."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from cachesim.engines.family import ACTS, STATES, Corner, Family, Patch, Scope, laying, tagged
from cachesim.engines.option import request_field
from cachesim.engines.sglang.options import SglangOptions, by_device
from cachesim.engines.sglang.rules import RULES_0522, RULES_0523, RULES_059, Rules

_release = partial(tagged, package="sglang")

RELEASES: Final = (
    _release("0.5.9", "2026-02-23", RULES_059, "a tree for each kind of model"),
    _release("0.5.22", "2026-10-15", RULES_0522, "the unified tree, matched after each insertion"),
    _release("0.5.23", "2026-10-30", RULES_0523, "one tree for all (UnifiedRadixCache)"),
)
"""Oldest first."""

ALL: Final = tuple(release.name for release in RELEASES)


PATCHES: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        name="no-31643",
        pull=31643,
        about="defect put back: a match refreshes every state on its path, not only the used one",
        fits=("0.5.23",),
        lay=laying(tree={"uses_path_states": True}),
    ),
    Patch(
        name="no-37836",
        pull=31833,
        about="defect put back: tracked states of a batch are read at the first request's offset",
        fits=ALL,
        lay=laying(runner={"offset_of_first": True}),
    ),
    Patch(
        name="no-29368",
        pull=29330,
        about="defect put back: a chunk shorter than the grid starts from a blank state",
        fits=ALL,
        lay=laying(runner={"load_needs_tracking": True}),
    ),
    Patch(
        pull=24221,
        about="defect as reported: the state stored for a chunk is the one after the next chunk",
        fits=ALL,
        lay=laying(runner={"snapshot_after_next_chunk": True}),
    ),
    Patch(
        pull=24380,
        about="defect as reported: the reply leaves the key, and its tokens stay in the state",
        fits=ALL,
        lay=laying(tree={"key_without_reply": True}),
    ),
    Patch(
        name="no-16521",
        pull=16521,
        about="defect put back: a finished request is inserted without the tokens of its reply",
        fits=("0.5.9",),
        lay=laying(tree={"inserts_prompt_only": True}),
    ),
    Patch(
        pull=31486,
        about="defect as reported: window slots that were freed count as alive when inserted",
        fits=ALL,
        lay=laying(tree={"inserts_gone_windows": True}),
    ),
    Patch(
        pull=39830,
        about="defect as reported: the host gets whatever is in the slots when the copy is needed",
        fits=ALL,
        lay=laying(runner={"host_copy_late": True}),
    ),
    Patch(
        pull=27586,
        about="defect as reported: reviving a node's window frees slots by a stale map",
        fits=("0.5.23",),
        lay=laying(tree={"frees_by_a_stale_map": True}),
    ),
    Patch(
        name="no-34870",
        pull=34870,
        about="defect put back: with EAGLE windows are freed by tokens, and inserted by pairs",
        fits=("0.5.23",),
        lay=laying(
            tree={
                "windows_go_by_tokens": True,
                "keeps_whole_pages": False,
                "holds_what_it_inserts": False,
            }
        ),
    ),
    Patch(
        pull=33713,
        about="defect as reported: a state that the device evicts is evicted from the host as well",
        fits=("0.5.23",),
        lay=laying(tree={"state_copies_go_too": True}),
    ),
    Patch(
        name="no-40680",
        pull=40680,
        about="defect put back: with write_back an inner node's state is dropped without a copy",
        fits=("0.5.23",),
        lay=laying(tree={"copies_inner_states": False}),
    ),
    Patch(
        name="no-29204",
        pull=29204,
        about="defect put back: with write_back an inner node's window is dropped without a copy",
        fits=("0.5.23",),
        lay=laying(tree={"copies_inner_windows": False}),
    ),
    Patch(
        name="no-34808",
        pull=34808,
        about="defect put back: states are tracked on a finer grid than the tree's pages",
        fits=("0.5.22", "0.5.23"),
        lay=laying(tree={"tracks_by_chunks": True}),
    ),
    Patch(
        name="no-27291",
        pull=27291,
        about="defect put back: the storage is asked for the last page too, where no match ends",
        fits=("0.5.23",),
        lay=laying(tree={"fetches_last_page": True}),
    ),
    Patch(
        pull=31771,
        about="as proposed: of a long node on the host only the last window is loaded",
        fits=("0.5.23",),
        lay=laying(tree={"splits_long_windows": True}),
    ),
    Patch(
        pull=39541,
        about="as with encoder replay and drafts: a host without windows, and a match asks for one",
        fits=("0.5.22",),
        lay=laying(tree={"host_has_windows": False}),
    ),
    Patch(
        pull=39436,
        about="as proposed: the host has room for the states of all the tokens that it holds",
        fits=("0.5.23",),
        lay=laying(tree={"states_for_every_chunk": True}),
    ),
    Patch(
        name="shared-state",
        about="our own defect: a request runs on the tree's state instead of a copy of it",
        fits=ALL,
        lay=laying(runner={"shares_states": True}),
    ),
)
"""In the order in which tools list them."""


_STATES: Final = frozenset({"ssm", "delta", "conv"})
_WINDOWS: Final = frozenset({"window"})


BEYOND: Final = (66, 66, 130, 130)
"""Lengths of prompts beyond one chunk of states and beyond two."""


def _corners() -> Iterator[Corner]:
    """Options under which states and window slots change owners: short grids, small pools."""
    for strategy in ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"):
        grid = {strategy: "extra_buffer"}
        many = grid | {"max_mamba_cache_size": 64}
        yield Corner(flags=many, layers=_STATES, crowd=True, edges=BEYOND, steps=10)
        often = grid | {"mamba_track_interval": 64}
        yield Corner(flags=often, layers=_STATES, replies=24, edges=BEYOND, steps=10)
        ends = {strategy: "no_buffer", "chunked_prefill_size": 64}
        yield Corner(flags=ends, layers=_STATES)
    yield Corner(layers=_WINDOWS, window=8, replies=24)
    yield Corner(flags={"page_size": 16}, layers=_WINDOWS, window=4, replies=24)
    pairs = {"speculative_algorithm": "EAGLE", "page_size": 16, "chunked_prefill_size": 64}
    yield Corner(flags=pairs, layers=_WINDOWS)
    host = {"enable_hierarchical_cache": True, "max_total_tokens": 300, "page_size": 1}
    yield Corner(flags=host, steps=14)
    few = host | {"max_total_tokens": 400, "swa_full_tokens_ratio": 0.3}
    yield Corner(flags=few, layers=_WINDOWS, steps=14)
    back = host | {"hicache_write_policy": "write_back", "hicache_ratio": 1.0}
    back |= {"max_total_tokens": 160}
    yield Corner(flags=back, steps=14)
    yield Corner(flags=back | {"max_mamba_cache_size": 6}, layers=_STATES, steps=14)
    file = {"hicache_storage_backend": "file", "prefetch_threshold": 20, "page_size": 4}
    yield Corner(flags=host | file, steps=14)
    one = {"max_mamba_cache_size": 6, "max_running_requests": 1}
    yield Corner(flags=one, layers=_STATES, steps=14)


def _late_corners() -> Iterator[Corner]:
    """Options under which requests overtake each other, have adapters, or copies lock states."""
    two: dict[str, object] = {"max_running_requests": 2}
    first = {"enable_priority_scheduling": True, "priority_scheduling_preemption_threshold": 0}
    yield Corner(flags=two | first, fields={"priority": 1})
    for policy in ("lpm", "shortest-prefill-first"):
        yield Corner(flags=two | {"schedule_policy": policy})
    adapter = {"lora": {"name": "L", "path": "A"}}
    yield Corner(flags={"lora": "A", "max_loras_per_batch": 1}, fields=adapter)
    slow = {"hicache_copy_steps": 8, "max_mamba_cache_size": 12, "chunked_prefill_size": 64}
    copies = slow | {"enable_hierarchical_cache": True}
    yield Corner(flags=copies, layers=_STATES, crowd=True, edges=BEYOND)


def _guided_corners() -> Iterator[Corner]:
    """Storage that requests wait for, queues in each order, sessions, and separate prefixes."""
    host = {"enable_hierarchical_cache": True, "max_total_tokens": 300, "hicache_ratio": 1.0}
    file = host | {"hicache_storage_backend": "file", "prefetch_threshold": 2}
    for policy in ("best_effort", "wait_complete", "timeout"):
        stored = file | {"hicache_storage_prefetch_policy": policy}
        yield Corner(flags=stored, window=8, steps=14)
        yield Corner(flags=stored | {"page_size": 4, "max_mamba_cache_size": 8}, window=8, steps=14)
    back = {"hicache_write_policy": "write_back", "hicache_storage_prefetch_policy": "timeout"}
    yield Corner(flags=file | back | {"max_mamba_cache_size": 8}, window=8, steps=14)
    small = {"max_total_tokens": 300, "max_mamba_cache_size": 16}
    for page in (1, 4):
        yield Corner(flags=small | {"page_size": page}, window=8, steps=14)
    mixed = {"enable_mixed_chunk": True, "chunked_prefill_size": 32}
    yield Corner(flags=mixed, crowd=True, replies=12)
    few = {"max_running_requests": 2, "max_total_tokens": 600, "max_mamba_cache_size": 16}
    first = few | {"enable_priority_scheduling": True}
    first |= {"priority_scheduling_preemption_threshold": 0}
    some = {"priority": (-1, 1, 2)}
    yield Corner(flags=first, fields=some, crowd=True, replies=12)
    low = first | {"schedule_low_priority_values_first": True, "schedule_policy": "lof"}
    yield Corner(flags=low, fields=some, crowd=True, replies=12)
    retracted = first | {"retraction_policy": "priority", "radix_eviction_policy": "priority"}
    yield Corner(flags=retracted, fields=some, crowd=True, replies=24)
    tight: dict[str, object] = {
        "max_total_tokens": 400,
        "max_running_requests": 4,
        "max_mamba_cache_size": 24,
    }
    for page in (1, 4):
        yield Corner(
            flags=tight | {"page_size": page}, window=8, crowd=True, replies=128, long_replies=True
        )
    tight |= {"enable_priority_scheduling": True, "retraction_policy": "priority"}
    yield Corner(flags=tight, fields=some, window=8, crowd=True, replies=128, long_replies=True)
    thinking = {"strip_thinking_cache": True}
    for flags in (small, few, tight | {"max_mamba_cache_size": 16}):
        says = {"require_reasoning": (True, True, False)}
        yield Corner(flags=flags | thinking, fields=says, window=8, replies=12, steps=14)
    short = {"schedule_policy": "shortest-prefill-first", "chunked_prefill_size": 32}
    for page in (1, 4):
        yield Corner(flags=few | short | {"page_size": page}, window=8, crowd=True, edges=BEYOND)
    for order in ("dfs-weight", "lof", "random", "hrrn", "lpm"):
        yield Corner(flags=few | {"schedule_policy": order}, crowd=True)
    keys: dict[str, object] = {"routing_key": ("a", "b")}
    yield Corner(flags=few | {"schedule_policy": "routing-key"}, fields=keys, crowd=True)
    yield Corner(fields={"extra_key": ("a", "b")})
    adapters = ({"name": "L", "path": "A"}, {"name": "M", "path": "B"})
    yield Corner(flags={"lora": "A,B", "max_loras_per_batch": 1}, fields={"lora": adapters})
    whose: list[dict[str, object]] = [{"id": "S"}]
    for part in ({}, {"offset": 5}, {"drop_previous_output": True}, {"replace": True}):
        whose += [{"id": "S", "rid": str(rid), **part} for rid in range(3)]  # of the first requests
    yield Corner(fields={"session_params": tuple(whose)})
    stream = {"id": "T", "streaming": True}
    turns = (stream, stream, stream, stream | {"close": True})
    yield Corner(flags={"enable_streaming_session": True}, fields={"session_params": turns})


TINY: Final = {"max_total_tokens": 24, "chunked_prefill_size": 8, "max_running_requests": 2}
"""A pool of 24 tokens, and chunks of eight."""

STRATEGY: Final = ("mamba_scheduler_strategy", "mamba_radix_cache_strategy")
"""The flag for the kept states, under its name of either release."""

FAMILY: Final[Family[Rules, SglangOptions]] = Family(
    name="sglang",
    about="SGLang: a radix tree whose nodes may hold states and window slots",
    repository="sgl-project/sglang",
    vocabulary="sglang radix hicache himamba tombstoned tombstone bigram swa tier node nodes page",
    takes_images=True,
    package=__package__,
    engine=f"{__package__}.server:Sglang",
    configuration=f"{__package__}.fields",
    releases=RELEASES,
    patches=PATCHES,
    options=SglangOptions,
    by_device=by_device,
    fields=(
        request_field(
            "extra_key", "text", "separates this request's prefixes from those of other keys"
        ),
        request_field(
            "lora",
            "any",
            "the adapter to answer with: a table with 'name', and 'path' among --lora-paths; with "
            "'weights' among them instead, any path, at which they are now",
        ),
        request_field(
            "session_params",
            "any",
            "the session of this request: a table with 'id', 'rid' of the request to continue, and "
            "'offset', 'replace', 'drop_previous_output'; 'streaming', 'close' of the session",
        ),
        request_field("rid", "text", "the name of this request in its session"),
        request_field(
            "routing_key", "text", "under the policy `routing-key`: requests of one key go together"
        ),
        request_field(
            "require_reasoning",
            "yes or no",
            "the reply begins with reasoning, as the chat template of a reasoning model asks; with "
            "--strip-thinking-cache nothing of such a reply is kept. By default so under a "
            "`reasoning_parser`",
        ),
        request_field(
            "priority",
            "whole number",
            "under priority scheduling, larger numbers are served first; under the eviction policy "
            "`priority`, nodes of lower priority are evicted first",
            low=-(1 << 31),
            high=1 << 31,
        ),
    ),
    finds_again=lambda flags: flags.tree_page,
    has_slots=False,
    may_decline=False,
    hunted=({}, {"enable_hierarchical_cache": True, "max_total_tokens": 400}),
    corners=tuple(_corners()),
    late_corners=tuple(_late_corners()),
    guided_corners=tuple(_guided_corners()),
    prompt_field="session_params",
    draft_flag="speculative_algorithm",
    aborts_at_once=True,
    laws=f"{__package__}.laws:SglangLaws",
    scopes=(
        Scope(
            flags={**TINY, "page_size": 4},
            lengths=(4, 5, 8),
            acts=(*ACTS, "together", "cancel"),
            without=STATES,
            window=4,
        ),
        Scope(
            flags={**TINY, **dict.fromkeys(STRATEGY, "no_buffer"), "max_mamba_cache_size": 8},
            lengths=(4, 8, 9),
            acts=(*ACTS, "together", "cancel"),
            layers=STATES,
        ),
        Scope(
            flags={
                **dict.fromkeys(STRATEGY, "extra_buffer"),
                "max_total_tokens": 200,
                "chunked_prefill_size": 64,
                "max_mamba_cache_size": 8,
                "max_running_requests": 2,
                "mamba_track_interval": 64,
            },
            lengths=(1, 64, 65),
            layers=STATES,
        ),
    ),
    incidents=("cancel", "arrival"),
    exercised={
        "node-evicted": "eviction",
        "state-evicted": "eviction",
        "prefix-kept": "save",
        "loaded-from-host": "load",
    },
)
