"""What the server of a release does with a request, as data: one field per difference."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Tails: TypeAlias = Literal["ragged", "padded"]
"""Fed after the checkpoint: the last columns of each prompt, refused or padded if unequal."""

WhenDead: TypeAlias = Literal["hangs", "refused"]
"""What becomes of a request that comes after the generation thread died."""

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
    """How one release tokenises, looks up, prefills, stores and reports."""

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
    """What `max_tokens` 0 gets: the generator's default of 128 tokens; from 0.31.2 on one; 0.32.0
    dies of it; 0.32.2 turns it away."""

    refuses_empty_prompts: bool = False  # 0.32.0: ValueError where an IndexError came
    when_dead: WhenDead = "hangs"  # 0.32.0: fails fast
    snapshots: SnapshotRules | None = None  # 923
