"""Rules of the cache classes of an mlx-lm release, as data.

One field per difference, named after what it does; its docstring names the change that made it.
The logic never asks for a release: it asks for a rule. The defaults are the newest release's.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

StateForm: TypeAlias = Literal["sliced", "whole"]
EmptySide: TypeAlias = Literal["raises", "skipped", "zeros"]
MergedEmpties: TypeAlias = Literal["raises", "unpadded", "zero-padded"]
RingMerge: TypeAlias = Literal["last-rows", "by-index", "by-offset"]
RingExtract: TypeAlias = Literal["clamped", "from-the-end", "uncut"]
BatchForm: TypeAlias = Literal["raises", "other-side", "own-side"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """The layer caches of one release."""

    state_form: StateForm = "whole"
    """0.32.0: `state` is everything, scalars too; before, arrays cut to their tokens and a
    `meta_state` of strings beside them."""

    counts_bytes: bool = True
    """#906 (0.31.0): caches have `nbytes`."""

    bytes_skip_missing_slots: bool = True
    """#918 (0.31.0), and #923: a recurrent slot without a state counts as nothing."""

    list_state_by_member: bool = True
    """#886 (0.31.0): the state of a `CacheList` keeps its members apart and can be restored."""

    restores_padding_fields: bool = True
    """#807 (0.30.5): a restored recurrent cache has its fields for padding; before, whatever asked
    for one of them raised."""

    lengths_beside_left_padding: bool = True
    """0.32.0: a recurrent mask obeys left padding and lengths; before, the first hid the second,
    and since #1177 every fresh batch has a left padding of zeros."""

    window_masks_one_column: bool = True
    """#843 (0.30.6): a cache that keeps everything gives a mask where a window is asked for;
    before, one column had none, and several only where an array was asked for."""

    chunk_front_counts_valid_rows: bool = True
    """#1673 (0.32.0): dropping a chunk's front counts valid rows; before, allocated ones."""

    chunks_always_trim: bool = True
    """A chunk says that it can be trimmed, though its front may be gone: what is asked beyond that
    stays. Patch "chunk-front", cachesim's own: it says so only while it holds every token."""

    filter_accepts_empty: bool = True
    """#1072 (0.31.2): `filter` of a batch cache, or a recurrent slot, that holds nothing."""

    filter_keeps_lengths: bool = True
    """#1072 (0.31.2): filtering a recurrent batch filters its lengths too."""

    filter_keeps_left_padding: bool = True
    """#1177 (0.31.3): and its left padding."""

    arrays_extend: EmptySide = "zeros"
    """Replacement of a missing slot when recurrent batches are joined. #1169, #1177 (0.31.3): zeros
    of that side's batch size; 0.31.2: it is skipped, so the batch comes out too short."""

    arrays_merge_of_empties: MergedEmpties = "zero-padded"
    """Merging recurrent caches that all hold nothing: #1072 (0.31.2) stopped raising, #1177
    (0.31.3) set a left padding of zeros, so that the batch knows its size."""

    batch_extend: BatchForm = "own-side"
    """The batch size of an empty side's block in `extend`: #1141 (0.31.3) takes it from that
    side's own offsets; 0.31.2 from whichever side has a buffer; before, it raised."""

    extend_promotes: bool = False
    """Until #1491 (0.32.0) a side that holds nothing comes in float32, so that keys and values of
    all rows become float32: whoever joins a batch doubles its bytes, and those of what is stored
    of it."""

    merge_skips_empty: bool = True
    """#755 (0.30.4): a cache without keys is merged with others; before, it raised."""

    merge_of_empties: bool = True
    """#1072 (0.31.2): merging caches that all hold nothing gives an empty batch."""

    batch_size_method: bool = True
    """Batch caches have a `size()` of their own: not from #769 (0.30.4) to #1072 (0.31.2)."""

    rotating_merge: RingMerge = "last-rows"
    """#1072 (0.31.2): a merged ring gives its last `size()` rows; before, its whole temporal
    order into a place `_idx` rows wide, before #738 (0.30.4) as wide as its offset."""

    rotating_extract: RingExtract = "clamped"
    """#1072 (0.31.2): a negative left padding counts as none when a row is extracted; before, it
    counted from the end, and before #738 (0.30.4) a row without padding kept unused rows too."""

    batches_recurrent: bool = True
    """#690, with #740, #743 and #769 (0.30.4): recurrent caches, and lists of caches, have a batch
    form, and caches can be asked whether they are empty."""

    chunked_is_kv: bool = False
    """Until #743 (0.30.4) a `ChunkedKVCache` was a `KVCache`, whose size is its offset."""

    rotated_is_restored: bool = True
    """0.32.0: the flag survives a restore; before, its text was taken as true."""

    saves_empty_arrays: bool = True
    """The array runtime under 0.30 and 0.31.1 refuses to save an array without elements."""

    rotating_unrolls_on_trim: bool = False
    """#999 (closed): rings can always be trimmed, by unrolling them and dropping rows; position
    and fill are counted apart."""

    ring_mask_counts_rows: bool = False
    """Patch "ring-mask", cachesim's own: the mask of several columns on a ring that has turned
    counts its rows. Every release takes the write index for that number, and so hides one token
    too many of each padded row (found by random journeys)."""

    arrays_trim_resets: bool = False
    """#1253, #1254 (closed): recurrent states can be trimmed, which forgets them."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> "CacheRules":
        return self


Prunes: TypeAlias = Literal["never", "all", "all-but-nearest", "within-size"]
SameKey: TypeAlias = Literal["counts", "keeps-old", "replaces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRules:
    """The `LRUPromptCache` of one release; the defaults are those of #1078 (0.31.2)."""

    consumes: bool = False
    """Until #911 (0.31.0) a fetch takes the entry out of the store."""

    cuts_to_common_prefix: bool = True
    """#138 (0.24.1): an entry that parts from the prompt is cut back; before, none was used."""

    leaves_one_token: bool = True
    """#183 (0.24.2): a longer entry is cut so that one token is left; before, nothing was left."""

    longer_beside_shorter: bool = True
    """#911 (0.31.0): a longer entry is considered although a shorter one could be used."""

    prunes: Prunes = "all"
    """Prefix entries removed by an insertion of trimmable caches: none until #911; with #1019
    all but the entry one token shorter, until #1078; with #999 (closed) only entries that are at
    most `size()` tokens shorter."""

    same_key: SameKey = "replaces"
    """A second insertion under one key: counted and thrown away until #911 (0.31.0), thrown away
    until #1019 (0.31.2), then it replaces the first."""

    queues: tuple[str, ...] = ("assistant", "user", "system")
    """Recency queues: one; with #911 ordinary entries and checkpoints; with #1019 one per type."""

    limits_bytes: bool = True
    """#906 (0.31.0): `max_bytes`, a byte counter and `trim_to`."""

    keeps_one_beyond_bytes: bool = False
    """Until #1019 the byte limit leaves one entry, however large."""

    empty_query_is_exact: bool = False
    """Until #1078 (0.31.2) an empty query counted as an exact match, then was not found."""

    forgives_lost_keys: bool = True
    """Since #1019 (0.31.2) a key that no queue has is no error."""

    passes_empty_queues: bool = True
    """#1072 (0.31.2): an empty queue is passed over; #1019 took from it, and raised."""

    checks_trimmed: bool = False
    """#999 (closed): a longer entry serves only if the first layer trimmed what was asked."""

    reuses_untrimmed: bool = False
    """#1186 (closed): a longer entry that cannot be cut serves as it is."""

    def queue_of(self, cache_type: str) -> str:
        """The queue of an entry: its type's, or what the release makes of types."""
        if cache_type in self.queues:
            return cache_type
        if "checkpoint" in self.queues:
            return "ordinary" if cache_type == "assistant" else "checkpoint"
        return self.queues[-1]


Tails: TypeAlias = Literal["ragged", "padded"]
"""Fed after the checkpoint: the last columns of each prompt, refused or padded if unequal."""

WhenDead: TypeAlias = Literal["hangs", "refused"]
"""Fate of a request that arrives after the death of the generation thread."""

NoTokens: TypeAlias = Literal["default", "one", "dies", "refused"]
"""A request for no tokens at all gets some in a batch, ends the thread, or is turned away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRules:
    """#923: copies of a finished conversation, cut back to the ends of its messages."""

    interval: int = 8192
    always_the_last_boundary: bool = False  # 929, its first fix
    boundary_after_every_message: bool = False  # 929, its second fix
    trims_each_layer_it_can: bool = False  # 929, its third fix


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRules:
    """Rules of a release's server: tokens, lookup, prefill, storage, report."""

    segments: bool = False
    """#1072 (0.31.2): prompts are prefilled in segments, right-padded, key and state together; what
    a disconnected client leaves is thrown away, where #741 had stored it."""

    checkpoint: bool = False  # 911: one state of each chat prompt is kept, near its end
    checkpoint_at_last_user: bool = False  # 1006: near the end becomes "before the last user text"
    tails: Tails = "ragged"  # 1006, its second commit: "padded"
    checkpoint_only_at_own_distance: bool = False  # 1006, its third commit
    binds_late: bool = False  # until 976: each checkpoint of a batch holds the last row's state
    reports_cached: bool = True  # 849
    stop_words_end_generation: bool = False
    """#1072: before, the HTTP side watched for them, and told the worker to stop."""

    fresh_by_length: bool = False
    """Until #690 (0.30.4) a batch was fresh if no cache held a token; since, if the first layer of
    every cache has never been written."""

    lengths_leave_last: bool = True
    """#738 (0.30.4): a padded prefill is told its rows' lengths without their last tokens, which it
    does not feed; before, with them, and a ring kept one token too many of each shorter row."""

    forgets_stopped: bool = True
    """#741 (0.30.6): what a stop word ended is stored and leaves the books of its batch; before,
    its state was thrown away and the books kept it, so that no such batch was ever drained."""

    notices_leaving: bool = False
    """#1072: the HTTP side stops what its client left; before, a reply went on for nobody."""

    drafts_are_guarded: bool = False
    """#1109 (0.31.2): caches that cannot be trimmed are refused with a draft model; before, what
    was drafted in vain stayed in them. A prompt's last token is fed alone since then."""

    key_is_what_was_fed: bool = False
    """Patch "draft-key", cachesim's own: with a draft model, the key of a stored state ends where
    the state does. Every release ends it with the reply, of which the last token may be unfed."""

    tells_marks: bool = True
    """0.31.2 keeps the end mark and thinking marks to itself, in the counts of a reply too."""

    no_tokens: NoTokens = "default"
    """Effect of `max_tokens` 0: the generator's default of 128 tokens; from 0.31.2 on one; 0.32.0
    dies of it; 0.32.2 refuses it."""

    refuses_empty_prompts: bool = False  # 0.32.0: ValueError where an IndexError came
    when_dead: WhenDead = "hangs"  # 0.32.0: fails fast
    snapshots: SnapshotRules | None = None  # 923
