"""How far back memory reaches, which checkpoint helps where it does not, which are erased.

memory         [ pos_min ............ pos_max ]
common prefix  [ 0 ......... n_past )            go on at pos_next = n_past
needed                [ thold ...             )  usable as it is where pos_min < thold
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.checkpoint import Checkpoint
from cachesim.engines.llamacpp.events import (
    CheckpointChecked,
    CheckpointErased,
    CheckpointKept,
    CheckpointRestored,
    DepthTested,
    FullReprocessing,
)
from cachesim.engines.llamacpp.rules import Erasure, ExactSearch, ReuseRules, SearchLimit
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Slot
from cachesim.engines.llamacpp.task import Task
from cachesim.engines.words import in_numbers
from cachesim.errors import UpstreamAbort
from cachesim.units import NO_POS


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What checkpoints are measured against."""

    n_past: int
    pos_next: int  # the position to go on at; a restored checkpoint lowers it
    prefix_end: int  # the same before any checkpoint
    thold: int  # upstream: pos_min_thold
    n_prompt: int


Test: TypeAlias = Callable[[Checkpoint, Prefix], bool]

THRESHOLD: Final[tuple[tuple[str, Test], ...]] = (
    ("pos_min >= pos_min_thold", lambda c, p: c.pos_min >= p.thold and c.pos_min != 0),
)
"""The released test; a checkpoint from position 0 always passes (#21510)."""

BEYOND: Final[tuple[str, Test]] = ("pos_max > pos_next", lambda c, p: c.pos_max > p.pos_next)
READ_AGAIN: Final[tuple[str, Test]] = (
    "pos_max > pos_next - 1",
    lambda c, p: c.pos_max > p.pos_next - 1 and p.n_past >= p.n_prompt,
)
PAST_THE_END: Final[tuple[str, Test]] = (
    "pos_end > prefix_end",
    lambda c, p: c.pos_end > p.prefix_end,
)
LEAVES_NOTHING: Final[tuple[str, Test]] = (
    "n_tokens > n_prompt - 1",
    lambda c, p: c.n_tokens > p.n_prompt - 1,
)

EXACT_TESTS: Final[Mapping[ExactSearch, tuple[tuple[str, Test], ...]]] = {
    "threshold": THRESHOLD,
    "pos_end": (PAST_THE_END, LEAVES_NOTHING),
    "longest": (PAST_THE_END, LEAVES_NOTHING),
    "pos_max": (BEYOND,),
    "inside": (("pos_max >= pos_min_thold", lambda c, p: c.pos_max >= p.thold),),
}
"""Tests that refuse a checkpoint of an exact state; windows have the released one."""

LIMITS: Final[Mapping[SearchLimit, tuple[tuple[str, Test], ...]]] = {
    "none": (),
    "beyond": (BEYOND,),
    "read-again": (BEYOND, READ_AGAIN),
}
"""Tests that refuse a checkpoint for where it ends, whatever the state."""

BEYOND_PREFIX: Final[tuple[str, Test]] = (
    "n_tokens > prefix_end",
    lambda c, p: c.n_tokens > p.prefix_end,
)

ERASED: Final[Mapping[Erasure, tuple[str, Test]]] = {
    "beyond": BEYOND,
    "equal": ("pos_max >= pos_next", lambda c, p: c.pos_max >= p.pos_next),
    "pos_end": (
        "pos_end > prefix_end or pos_max > pos_next",
        lambda c, p: c.pos_end > p.prefix_end or c.pos_max > p.pos_next,
    ),
    "prefix": BEYOND_PREFIX,
    "diverged": BEYOND_PREFIX,
    "prompt": ("pos_max > n_prompt", lambda c, p: c.pos_max > p.n_prompt),
}
"""Which checkpoints a prompt erases: the rule in words, and as a test.

Trap: the released rule, "beyond", keeps one whose last token lies exactly at `pos_next`, and every
one at position 0, although that token may differ from the new prompt's.
"""


def numbers_of(rule: str, checkpoint: Checkpoint, prefix: Prefix) -> str:
    """A rule with the numbers that it was asked about: `pos_max > pos_next` as `0 > 0`."""
    values = {**checkpoint.as_dict(), "pos_end": int(checkpoint.pos_end)}
    values |= {
        "n_past": prefix.n_past,
        "pos_next": prefix.pos_next,
        "prefix_end": prefix.prefix_end,
        "pos_min_thold": prefix.thold,
        "n_prompt": prefix.n_prompt,
    }
    return in_numbers(rule, values)


def usable_prefix(server: ServerContext, slot: Slot, task: Task, n_past: int) -> int:
    """How much of a common prefix memory or a checkpoint can continue.

    Traps: for a window the depth test fails whenever the prefix is no longer than the window,
    although every cell is there; for a recurrent state it fails unless the prompt only adds tokens.
    """
    rules = server.rules.reuse
    spared = 1 if rules.thold_spares_one_token and n_past >= task.n_tokens else 0
    prefix = Prefix(
        n_past=n_past,
        pos_next=n_past,
        prefix_end=n_past,
        thold=max(0, n_past - server.n_swa - spared),
        n_prompt=task.n_tokens,
    )
    most = slot.prompt.n_tokens - (1 if rules.depth_test_skips_extensions else 0)
    if 0 < n_past <= most:
        prefix = _test_depth(server, slot, task, prefix)
    _erase_checkpoints(server, slot, task, prefix)
    return prefix.n_past


def _test_depth(server: ServerContext, slot: Slot, task: Task, prefix: Prefix) -> Prefix:
    pos_min = server.contexts.target.seq_pos_min(slot.id)
    if pos_min == NO_POS:
        where = "update_slots"
        raise UpstreamAbort(where, "pos_min == -1, but n_past > 0 (#13833)")
    server.emit(
        DepthTested(
            slot=slot.id,
            task=task.id,
            n_past=prefix.n_past,
            slot_tokens=slot.prompt.n_tokens,
            pos_min=pos_min,
            threshold=prefix.thold,
            n_swa=server.n_swa,
            rule="pos_min >= pos_min_thold",
            numbers=f"{pos_min} >= {prefix.thold}",
        )
    )
    if pos_min < prefix.thold:
        return prefix
    refused: list[dict[str, Any]] = []
    checkpoint = _find_checkpoint(server, slot, task, prefix, refused)
    detail = {"pos_min": pos_min, "threshold": prefix.thold, "n_swa": server.n_swa}
    if checkpoint is None or not restore(server, slot, checkpoint):
        server.emit(FullReprocessing(slot=slot.id, task=task.id))
        task.ledger.apply(causes.FULL_REPROCESSING, 0, **detail, checkpoints=refused)
        return replace(prefix, n_past=0, pos_next=0)
    task.ledger.apply(causes.MEMORY_DEPTH, 0, **detail, checkpoints=refused)
    return _continue_from(server, slot, task, checkpoint, prefix)


def _find_checkpoint(
    server: ServerContext,
    slot: Slot,
    task: Task,
    prefix: Prefix,
    refused: list[dict[str, Any]],
) -> Checkpoint | None:
    """The newest checkpoint that passes; the list is in order of creation, not of length."""
    rules, exact = server.rules.reuse, server.is_exact
    candidates = slot.prompt.checkpoints[::-1]
    if exact and rules.exact_search == "longest":
        candidates.sort(key=lambda each: -each.n_tokens)
    for checkpoint in candidates:
        reason = refusal(rules, checkpoint, prefix, exact=exact)
        numbers = numbers_of(reason, checkpoint, prefix)
        server.emit(
            CheckpointChecked(
                slot=slot.id,
                task=task.id,
                **checkpoint.as_dict(),
                threshold=prefix.thold,
                pos_next=prefix.pos_next,
                refused=reason,
                numbers=numbers,
            )
        )
        if not reason:
            return checkpoint
        refused.append({**checkpoint.as_dict(), "refused": reason, "numbers": numbers})
    return None


def refusal(rules: ReuseRules, checkpoint: Checkpoint, prefix: Prefix, *, exact: bool) -> str:
    """The first test that a checkpoint fails; empty if it passes all."""
    tests = EXACT_TESTS[rules.exact_search] if exact else THRESHOLD
    tests += LIMITS[rules.search_limit]
    if rules.exact_search == "pos_end":
        tests = (*tests, PAST_THE_END)
    return next((name for name, fails in tests if fails(checkpoint, prefix)), "")


def restore(server: ServerContext, slot: Slot, checkpoint: Checkpoint) -> bool:
    """Put the saved states back; False where the release falls back to reading everything."""
    contexts, state = server.contexts, checkpoint.state
    loaded = contexts.load_target(state.target, slot.id, partial=True)
    loaded = loaded and contexts.load_companion(state.companion, slot.id, partial=True)
    if not loaded and not server.rules.reuse.failed_restore_resets:
        where = "common_prompt_checkpoint::load_tgt"
        raise UpstreamAbort(where, "the saved state does not fit")
    if server.drafter is not None and checkpoint.drafter is not None:
        server.drafter.carry(slot.id, checkpoint.drafter)
    return loaded


def _continue_from(
    server: ServerContext, slot: Slot, task: Task, checkpoint: Checkpoint, prefix: Prefix
) -> Prefix:
    """A checkpoint of an exact state gives its tokens; one of a window gives one token less.

    Trap: one that was taken before a context shift stands for other tokens by now. What it brings
    back is no approximation that the server meant.
    """
    slot.prompt.approximate = checkpoint.approximate
    pos_next = min(prefix.pos_next, max(checkpoint.pos_min + 1, checkpoint.pos_max))
    n_past = min(pos_next, slot.prompt.n_tokens, checkpoint.n_tokens)
    server.emit(
        CheckpointRestored(
            slot=slot.id,
            task=task.id,
            **checkpoint.as_dict(),
            n_past=n_past,
            size=checkpoint.size,
            made_by=checkpoint.id_task,
        )
    )
    task.ledger.apply(causes.CHECKPOINT_RESTORED, n_past, **checkpoint.as_dict())
    if server.rules.checkpoints.split_at_prefix and n_past < prefix.prefix_end:
        slot.split_at = prefix.prefix_end
    return replace(prefix, n_past=n_past, pos_next=pos_next)


def _erase_checkpoints(server: ServerContext, slot: Slot, task: Task, prefix: Prefix) -> None:
    """Drop the checkpoints that do not fit the new prompt (#20671).

    Upstream prints nothing of one that stays though the prompt does not begin with all its tokens;
    that is how a stale state goes unnoticed. Here it is an event.
    """
    erasure = server.rules.reuse.erasure
    if erasure == "diverged" and not server.is_exact:
        erasure = "beyond"
    rule, is_erased = ERASED[erasure]
    kept = []
    for checkpoint in slot.prompt.checkpoints:
        numbers = numbers_of(rule, checkpoint, prefix)
        if is_erased(checkpoint, prefix):
            server.emit(
                CheckpointErased(
                    slot=slot.id,
                    task=task.id,
                    **checkpoint.as_dict(),
                    n_swa=server.n_swa,
                    pos_next=prefix.pos_next,
                    size=checkpoint.size,
                    rule=rule,
                    numbers=numbers,
                )
            )
            continue
        kept.append(checkpoint)
        if checkpoint.n_tokens > prefix.prefix_end:
            server.emit(
                CheckpointKept(
                    slot=slot.id,
                    task=task.id,
                    **checkpoint.as_dict(),
                    pos_next=prefix.pos_next,
                    shared=prefix.prefix_end,
                    rule=rule,
                    numbers=numbers,
                    made_by=checkpoint.id_task,
                )
            )
    slot.prompt.checkpoints = kept
