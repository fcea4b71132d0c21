"""Rules of the cache classes of an mlx-lm release, as data.

One field per difference, named after its effect; its docstring names the upstream change. The logic
reads rules, never the release. The defaults are the newest release's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from cachesim.engines.mlx_lm.families import ModelFamily, RecurrentRules

StateForm: TypeAlias = Literal["sliced", "whole"]
EmptySide: TypeAlias = Literal["raises", "skipped", "zeros"]
MergedEmpties: TypeAlias = Literal["raises", "unpadded", "zero-padded"]
RingMerge: TypeAlias = Literal["last-rows", "by-index", "by-offset"]
RingExtract: TypeAlias = Literal["clamped", "from-the-end", "uncut"]
BatchForm: TypeAlias = Literal["raises", "other-side", "own-side"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """Rules of the layer caches."""

    state_form: StateForm = "whole"
    """0.32.0: `state` is complete, scalars included; before, arrays cut to their tokens and a
    `meta_state` of strings."""

    counts_bytes: bool = True
    """#906 (0.31.0): caches have `nbytes`."""

    bytes_skip_missing_slots: bool = True
    """#918 (0.31.0), #923: a recurrent slot without a state counts 0 bytes."""

    list_state_by_member: bool = True
    """#886 (0.31.0): the state of a `CacheList` separates its members and can be restored."""

    restores_padding_fields: bool = True
    """#807 (0.30.5): a restored recurrent cache has its padding fields; before, they raised."""

    lengths_beside_left_padding: bool = True
    """0.32.0: a recurrent mask combines left padding and lengths; before, left padding replaced
    lengths, and since #1177 every fresh batch has a left padding of zeros."""

    window_masks_one_column: bool = True
    """#843 (0.30.6): a cache without eviction returns a mask for a window; before, none for one
    column, and for several columns only on request."""

    chunk_front_counts_valid_rows: bool = True
    """#1673 (0.32.0): dropping a chunk's front counts valid rows; before, allocated ones."""

    chunks_always_trim: bool = True
    """A chunk is always trimmable, though its front may be dropped: a trim beyond that is
    incomplete. Patch "chunk-front", cachesim's own: trimmable only while it holds every token."""

    filter_accepts_empty: bool = True
    """#1072 (0.31.2): `filter` accepts an empty batch cache or recurrent slot."""

    filter_keeps_lengths: bool = True
    """#1072 (0.31.2): filtering a recurrent batch filters its lengths too."""

    filter_keeps_left_padding: bool = True
    """#1177 (0.31.3): filtering a recurrent batch filters its left padding too."""

    arrays_extend: EmptySide = "zeros"
    """Replacement of a missing slot when recurrent batches are joined: zeros of that side's batch
    size since #1169 and #1177 (0.31.3); none in 0.31.2, so that the batch is too short."""

    arrays_merge_of_empties: MergedEmpties = "zero-padded"
    """Merging recurrent caches that are all empty: no error since #1072 (0.31.2); a left padding of
    zeros, which gives the batch its size, since #1177 (0.31.3)."""

    batch_extend: BatchForm = "own-side"
    """Batch size of an empty side's block in `extend`: its own since #1141 (0.31.3); that of the
    side with a buffer in 0.31.2; before, an error."""

    extend_promotes: bool = False
    """Until #1491 (0.32.0) an empty side is in float32, and so is the joined batch: its bytes
    double, and so do those of the entries stored from it."""

    merge_skips_empty: bool = True
    """#755 (0.30.4): a merge accepts caches without keys; before, it raised."""

    merge_of_empties: bool = True
    """#1072 (0.31.2): a merge of empty caches gives an empty batch."""

    batch_size_method: bool = True
    """Batch caches have a `size()` of their own: not from #769 (0.30.4) to #1072 (0.31.2)."""

    rotating_merge: RingMerge = "last-rows"
    """#1072 (0.31.2): a merged ring gives its last `size()` rows; before, its whole temporal order
    for a slice of `_idx` rows, before #738 (0.30.4) of `offset` rows."""

    rotating_extract: RingExtract = "clamped"
    """#1072 (0.31.2): a negative left padding counts as 0 when a row is extracted; before, it
    indexed from the end, and before #738 (0.30.4) a row without padding kept unused rows too."""

    batches_recurrent: bool = True
    """#690, with #740, #743 and #769 (0.30.4): recurrent caches, and lists of caches, have a batch
    form, and all caches have `empty`."""

    chunked_is_kv: bool = False
    """Until #743 (0.30.4) a `ChunkedKVCache` was a `KVCache`, whose size is its offset."""

    rotated_is_restored: bool = True
    """0.32.0: a restore keeps the flag; before, any text counted as true."""

    saves_empty_arrays: bool = True
    """The array runtime under 0.30 and 0.31.1 refuses to save an array without elements."""

    rotating_unrolls_on_trim: bool = False
    """#999 (closed): rings are always trimmable, by unrolling them and dropping rows; position and
    fill are separate."""

    ring_mask_counts_rows: bool = False
    """Patch "ring-mask", cachesim's own: the mask of several columns on a wrapped ring uses its
    number of rows. Every release uses the write index instead, and so hides one token too many of
    each padded row (found by random tests)."""

    arrays_trim_resets: bool = False
    """#1253, #1254 (closed): a trim resets recurrent states."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> "CacheRules":
        return self


Prunes: TypeAlias = Literal["never", "all", "all-but-nearest", "within-size"]
SameKey: TypeAlias = Literal["counts", "keeps-old", "replaces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRules:
    """Rules of the `LRUPromptCache`; the defaults are those of #1078 (0.31.2)."""

    consumes: bool = False
    """Until #911 (0.31.0) a fetch removes the entry from the store."""

    cuts_to_common_prefix: bool = True
    """#138 (0.24.1): an entry that diverges from the prompt is trimmed; before, it was not used."""

    leaves_one_token: bool = True
    """#183 (0.24.2): a longer entry is trimmed so that one token is left to feed; before, none."""

    longer_beside_shorter: bool = True
    """#911 (0.31.0): a longer entry is considered beside a usable shorter one."""

    prunes: Prunes = "all"
    """Prefix entries removed by an insertion of trimmable caches: none until #911; with #1019
    all but the entry one token shorter, until #1078; with #999 (closed) only entries that are at
    most `size()` tokens shorter."""

    same_key: SameKey = "replaces"
    """A second insertion under one key: counted and discarded until #911 (0.31.0), discarded until
    #1019 (0.31.2); since then it replaces the first."""

    queues: tuple[str, ...] = ("assistant", "user", "system")
    """Recency queues: one; with #911 ordinary entries and checkpoints; with #1019 one per type."""

    limits_bytes: bool = True
    """#906 (0.31.0): `max_bytes`, a byte counter and `trim_to`."""

    keeps_one_beyond_bytes: bool = False
    """Until #1019 the byte limit leaves one entry of any size."""

    empty_query_is_exact: bool = False
    """Until #1078 (0.31.2) an empty query counted as an exact match, then was not found."""

    forgives_lost_keys: bool = True
    """Since #1019 (0.31.2) a key that is missing in all queues is no error."""

    passes_empty_queues: bool = True
    """#1072 (0.31.2): eviction skips an empty queue; #1019 popped from it, and raised."""

    checks_trimmed: bool = False
    """#999 (closed): a longer entry is used only if its first layer was trimmed as requested."""

    reuses_untrimmed: bool = False
    """#1186 (closed): a longer entry that cannot be trimmed is used as it is."""

    def queue_of(self, cache_type: str) -> str:
        """The queue of an entry's type; releases with fewer queues share them among types."""
        if cache_type in self.queues:
            return cache_type
        if "checkpoint" in self.queues:
            return "ordinary" if cache_type == "assistant" else "checkpoint"
        return self.queues[-1]


Tails: TypeAlias = Literal["ragged", "padded"]
"""Handling of unequal prompts after a checkpoint: refused, or padded."""

WhenDead: TypeAlias = Literal["hangs", "refused"]
"""Result of a request that arrives after the death of the generation thread."""

NoTokens: TypeAlias = Literal["default", "one", "dies", "refused"]
"""Result of a request for 0 tokens: a default, one token, death of the thread, refusal."""

BatchesBy: TypeAlias = Literal["loaded", "all loaded", "asked"]
"""The models whose caches decide if a request is batched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRules:
    """#923: copies of a finished conversation, trimmed to the ends of its messages."""

    interval: int = 8192
    always_the_last_boundary: bool = False  # 929, its first fix
    boundary_after_every_message: bool = False  # 929, its second fix
    trims_each_layer_it_can: bool = False  # 929, its third fix


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheRules:
    """The prefix cache of a server built on these caches, whose package has its fields.

    Such a server is simulated for one request at a time: it knows no batches.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRules:
    """Rules of a release's server: tokens, lookup, prefill, storage, report."""

    segments: bool = False
    """#1072 (0.31.2): prompts are prefilled in right-padded segments, key and state together; the
    state of a disconnected client is discarded, where #741 had stored it."""

    segments_end_with_chunks: bool = False  # 1667: where a layer cannot be trimmed
    checkpoint: bool = False  # 911: a state of each chat prompt is stored, near its end
    checkpoint_at_last_user: bool = False  # 1006: before the last user text instead
    tails: Tails = "ragged"  # 1006, its second commit: "padded"
    checkpoint_only_at_own_distance: bool = False  # 1006, its third commit
    binds_late: bool = False  # until 976: each checkpoint of a batch holds the last row's state
    reports_cached: bool = True  # 849
    stop_words_end_generation: bool = False
    """Since #1072; before, the HTTP side matched stop words and stopped the worker."""

    fresh_by_length: bool = False
    """Until #690 (0.30.4) a batch was fresh if no cache held a token; since then, if the first
    layer of every cache was never written."""

    lengths_leave_last: bool = True
    """#738 (0.30.4): a padded prefill gets the lengths of its rows without their last tokens, which
    it does not feed; before, with them, so that a ring kept one token too many of each shorter row.
    """

    forgets_stopped: bool = True
    """#741 (0.30.6): the state of a request ended by a stop word is stored, and the request removed
    from its batch; before, the state was discarded and the request kept, so that such a batch was
    never drained."""

    notices_leaving: bool = False
    """#1072: the HTTP side stops requests of disconnected clients; before, they ran on."""

    drafts_are_guarded: bool = False
    """#1109 (0.31.2): untrimmable caches are refused with a draft model; before, rejected drafts
    stayed in them. Since then a prompt's last token is fed alone."""

    key_is_what_was_fed: bool = False
    """Patch "draft-key", cachesim's own: with a draft model, a stored key ends where its state
    ends. In every release it ends with the reply, whose last token may be unfed."""

    tells_marks: bool = True
    """False in 0.31.2: a reply excludes the end mark and thinking marks, in its counts too."""

    no_tokens: NoTokens = "default"
    """Effect of `max_tokens` 0: the generator's default of 128 tokens; one token from 0.31.2 on;
    death of the thread in 0.32.0; refusal in 0.32.2."""

    batches_by: BatchesBy = "loaded"
    """The model whose caches decide if a request is batched: the one loaded at its arrival. Until
    #743 (0.30.4) the caches of every model loaded so far; from #842 (0.30.6) to 0.32.0 the one it
    asks for, because it is loaded first."""

    reads_images: bool = False  # since 0.32.1, one request after the other
    refuses_empty_prompts: bool = False  # 0.32.0: ValueError where an IndexError came
    when_dead: WhenDead = "hangs"  # 0.32.0: fails fast
    snapshots: SnapshotRules | None = None  # 923
    prefix_cache: PrefixCacheRules | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxRules:
    """All rules of one profile."""

    caches: CacheRules
    store: StoreRules
    server: ServerRules
    classes: Mapping[str, RecurrentRules]
    """Of each model class, by its name."""

    def of_class(self, family: ModelFamily) -> RecurrentRules:
        """Padding rules of a model class; its own if no release has changed them."""
        return self.classes.get(family.name, family.rules)
