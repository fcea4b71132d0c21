"""Checks of a server's groups against its options, and the groups of DeepSeek V4."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from cachesim.engines.vllm.block_pool import GroupSpec, Sizes
from cachesim.engines.vllm.rules import Rules
from cachesim.errors import OptionError
from cachesim.model.spec import COMPRESSOR_WINDOW, ModelSpec

COMPRESSED_BLOCK: Final = 256
"""Tokens in a block of DeepSeek V4's keys, the only size that its backends take."""

COMPRESSED_WINDOW: Final = 128


class Flags(Protocol):
    """The options that are checked, of `VllmOptions`."""

    @property
    def block_size(self) -> int: ...
    @property
    def has_connector(self) -> bool: ...
    @property
    def drafter_block_size(self) -> int: ...
    @property
    def drafts(self) -> int: ...
    @property
    def enable_prefix_caching(self) -> bool: ...
    @property
    def long_prefill_token_threshold(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def prefix_match_unit(self) -> int: ...
    @property
    def retention(self) -> int | None: ...
    @property
    def window_block_size(self) -> int: ...


def check_groups(options: Flags, groups: Sequence[GroupSpec], rules: Rules) -> None:
    """Refuse options that do not fit the groups that a model's layers make."""
    everywhere = any(group.mode == "all" for group in groups)
    if everywhere and options.drafts and not rules.runner.drafts_in_all_mode:
        raise OptionError(
            "this release ends at its start with a drafter and mamba_cache_mode 'all' "
            "(vllm-project/vllm#39809): write align"
        )
    _check_retention(options, groups, rules)
    _check_states(options, groups, rules)
    _check_windows(options, groups, rules)
    unit, block = options.prefix_match_unit, groups[0].block
    if unit and any(group.block % unit for group in groups):
        sizes = " and ".join(map(str, sorted({group.block for group in groups})))
        raise OptionError(
            f"option 'prefix_match_unit' is {unit}; it must divide the blocks of {sizes} tokens"
        )
    used = options.enable_prefix_caching or options.has_connector
    single = len(groups) == 1 and unit not in {0, block} and used
    if single and rules.lookup.refuses_idle_unit:
        raise OptionError(
            f"option 'prefix_match_unit' is {unit}; with a single group hits are multiples of "
            f"its blocks of {block} tokens: leave it out, or write {block}"
        )


def _check_windows(options: Flags, groups: Sequence[GroupSpec], rules: Rules) -> None:
    """Follows `unify_kv_cache_spec_page_size`: the smaller pages hold a multiple of tokens."""
    size, kinds = options.window_block_size, {group.kind for group in groups}
    if not size:
        return
    if not {"full", "window"} <= kinds:
        raise OptionError(
            f"option 'window_block_size' is {size}; it is for models with full attention and "
            "windows: leave it out"
        )
    modes = {group.mode for group in groups if group.kind == "mamba"}
    fine = modes == {"align"} and rules.lookup.fine_beside_states
    if modes and options.enable_prefix_caching and not fine:
        but = " but in mode 'align'" if rules.lookup.fine_beside_states else ""
        raise OptionError(
            f"option 'window_block_size' is {size}; beside states this release does not start "
            f"with it{but}: leave it out"
        )
    if max(size, options.block_size) % min(size, options.block_size):
        raise OptionError(
            f"option 'window_block_size' is {size}; it and block_size, which is "
            f"{options.block_size}, must divide one another"
        )


def check_drafter(options: Flags, layers: Sequence[GroupSpec], rules: Rules) -> None:
    """Follows `get_kv_cache_groups`: layers that attend alike are one group; in other models
    the blocks of smaller pages are a multiple of the largest page's.
    """
    size, kinds = options.drafter_block_size, {layer.kind for layer in layers}
    blocks = sorted({layer.block for layer in layers if layer.kind != "mamba"})
    aligned = [layer.block for layer in layers if layer.kind == "mamba" and layer.mode == "align"]
    why = ""
    if len(kinds) == 1 < len(blocks):
        why = "where all layers attend alike, the drafter's is in their group, of equal blocks"
    elif any(block % blocks[0] for block in blocks):
        why = f"of the blocks of {' and '.join(map(str, blocks))} tokens the smallest must "
        why += "divide the others"
    elif blocks[0] < max(aligned, default=0) and not rules.lookup.fine_beside_states:
        why = "beside states in larger blocks this release does not start with it"
    if size and why:
        raise OptionError(f"option 'drafter_block_size' is {size}; {why}: leave it out")


def _check_states(options: Flags, groups: Sequence[GroupSpec], rules: Rules) -> None:
    aligned = [group.block for group in groups if group.kind == "mamba" and group.mode == "align"]
    states = max(aligned, default=0)
    if options.max_num_batched_tokens < states and not rules.scheduler.accepts_small_budgets:
        raise OptionError(
            f"option 'max_num_batched_tokens' is {options.max_num_batched_tokens}; with states in "
            f"blocks of {states} tokens this release takes {states} or more"
        )
    threshold = options.long_prefill_token_threshold
    if 0 < threshold < states and not rules.scheduler.accepts_small_budgets:
        raise OptionError(
            f"option 'long_prefill_token_threshold' is {threshold}; with states in blocks of "
            f"{states} tokens this release takes 0, or {states} or more"
        )
    kept = [group.block for group in groups if group.kind == "mamba" and group.mode == "all"]
    others = [group.block for group in groups if group.kind != "mamba"]
    if kept and others and kept[0] != others[0] and not rules.lookup.mixed_blocks:
        raise OptionError(
            f"option 'mamba_block_size' is {kept[0]}; in this release all groups have blocks "
            f"of one size: leave it out, or write {others[0]}"
        )
    equal = rules.lookup.all_mode_blocks == "equal"
    if kept and others and (kept[0] > min(others) or (equal and kept[0] != others[0])):
        limit = "" if equal else "at most "
        raise OptionError(
            f"option 'mamba_block_size' is {kept[0]}; with mamba_cache_mode 'all' this release "
            f"ends at its start unless states' blocks are {limit}as large as attention's of "
            f"{others[0]} tokens: leave it out"
        )


def _check_retention(options: Flags, groups: Sequence[GroupSpec], rules: Rules) -> None:
    """Follows `_validate_prefix_cache_retention_interval`."""
    interval = options.retention
    if interval is None or not rules.retention.interval:
        return
    thinned = ("window", "mamba") if rules.retention.thins_states else ("window",)
    if not any(group.kind in thinned for group in groups):
        if interval or not rules.retention.accepts_idle_zero:
            raise OptionError(
                f"option 'prefix_cache_retention_interval' is {interval}; this release refuses "
                f"it for a model without groups that it thins ({', '.join(thinned)}): leave it "
                "out"
            )
        return
    block = Sizes.of(groups).scheduler_block
    if interval % block:
        raise OptionError(
            f"option 'prefix_cache_retention_interval' is {interval}; it must be a multiple of "
            f"{block} tokens, in which all groups' blocks end"
        )


def promoted(layers: Sequence[GroupSpec]) -> tuple[GroupSpec, ...]:
    """The group of all layers without the hybrid manager; none where they are alike already.

    Follows `unify_hybrid_kv_cache_specs`.
    """
    kinds = {layer.kind for layer in layers}
    if len(kinds) == 1:
        return ()
    if kinds not in ({"full", "window"}, {"full", "chunked"}):
        raise OptionError(
            "option 'disable_hybrid_kv_cache_manager' is true; this model does not start with "
            f"it, as layers of {', '.join(sorted(kinds))} fit no common group: leave it out"
        )
    if len({layer.block for layer in layers}) > 1:
        raise OptionError(
            "option 'disable_hybrid_kv_cache_manager' is true; all blocks then have block_size "
            "tokens: leave window_block_size and drafter_block_size out"
        )
    window, chunk = (max(getattr(layer, name) for layer in layers) for name in ("window", "chunk"))
    whole = next(layer for layer in layers if layer.kind == "full")
    return (replace(whole, window=window, chunk=chunk, layers=tuple(range(len(layers)))),)


def compressed_groups(spec: ModelSpec, rules: Rules, *, drafts: bool) -> tuple[GroupSpec, ...]:
    """The groups of DeepSeek V4 Flash, with the layers that stand for theirs.

    every layer        a window of 128                            in two groups, half and half
    of ratio 4 or 128  keys of so many tokens; of 4 an indexer's  in one
    of ratio 4         states of two compressors                  in one, with a window of 8
    of ratio 128       states of a compressor                     in one, with a window of 128

    No layer stands for the last: a hit ends where no group of 128 tokens is open. Pro's first layer
    is one of those, and its last two groups are in the other order. Follows the specs of
    `deepseek_v4`, and `_get_packed_kv_cache_groups`.
    """
    windows, states = spec.window_layers[::2], spec.window_layers[1::2]
    halves = tuple(
        GroupSpec(
            kind="window",
            block=64,
            window=COMPRESSED_WINDOW,
            eagle=drafts and half == 1,  # of the MTP head, the 44th layer
            layers=windows[half::2],
        )
        for half in range(2)
    )
    keys = GroupSpec(kind="full", block=COMPRESSED_BLOCK, layers=spec.attention_layers)
    first = (*halves, keys) if rules.lookup.groups_in_layer_order else (keys, *halves)
    return (
        *first,
        GroupSpec(kind="window", block=4, window=COMPRESSOR_WINDOW, layers=states),
        GroupSpec(kind="window", block=8, window=COMPRESSED_WINDOW),
    )
