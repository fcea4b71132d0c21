"""Checkpoints: acceptance, erasure by a new prompt, creation and eviction.

Upstream: the conditions of two loops in `update_slots`, and `create_checkpoint`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from cachesim.engines.llamacpp.rules import Erasure, ExactSearch, ReuseRules, SearchLimit
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Checkpoint, Slot, Task
from cachesim.engines.llamacpp.vocabulary.events import (
    CheckpointCreated,
    CheckpointCut,
    CheckpointDropped,
    CheckpointErased,
    CheckpointKept,
)
from cachesim.engines.words import in_numbers
from cachesim.errors import UpstreamAbort
from cachesim.units import Count, Pos


class Prefix(NamedTuple):
    """Upstream's local variables that checkpoints are compared with."""

    n_past: int
    pos_next: int  # where decoding resumes; a restored checkpoint lowers it
    prefix_end: int  # `pos_next` before any checkpoint
    pos_min_thold: int  # the largest pos_min that is deep enough, plus one
    n_prompt: int  # upstream: `slot.task->n_tokens()`

    def resumed(self, n_past: int, pos_next: int) -> "Prefix":
        """The prefix with an earlier position to resume at."""
        return self._replace(n_past=n_past, pos_next=pos_next)


Test: TypeAlias = Callable[[Checkpoint, Prefix], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """A test that a checkpoint has to pass, and the text for one that fails."""

    passes: Test
    refused_if: str


FIX_POS_MIN: Final = Accept(  # [TAG_CHECKPOINTS_FIX_POS_MIN], #24411
    passes=lambda cur, p: not cur.pos_max > p.pos_next, refused_if="pos_max > pos_next"
)
THRESHOLD: Final = Accept(  # Trap: before #21510 no checkpoint passes a threshold of 0
    passes=lambda cur, p: cur.pos_min < p.pos_min_thold, refused_if="pos_min >= pos_min_thold"
)
FROM_START: Final = Accept(  # #21510: `|| cur.pos_min == 0`, which matters at a threshold of 0
    passes=lambda cur, _: cur.pos_min == 0, refused_if="pos_min > 0"
)
ONE_KEY_MORE: Final = Accept(
    passes=lambda cur, p: cur.pos_max <= p.pos_next - 1 or p.n_past < p.n_prompt,
    refused_if="pos_max > pos_next - 1 and n_past >= n_prompt",
)
INSIDE_PREFIX: Final = Accept(
    passes=lambda cur, p: cur.pos_end <= p.prefix_end, refused_if="pos_end > prefix_end"
)
LEAVES_ONE: Final = Accept(
    passes=lambda cur, p: cur.n_tokens <= p.n_prompt - 1, refused_if="n_tokens > n_prompt - 1"
)
ENDS_INSIDE: Final = Accept(
    passes=lambda cur, p: cur.pos_max < p.pos_min_thold, refused_if="pos_max >= pos_min_thold"
)

LIMITS: Final[Mapping[SearchLimit, tuple[Accept, ...]]] = {
    "none": (),
    "beyond": (FIX_POS_MIN,),
    "read-again": (FIX_POS_MIN, ONE_KEY_MORE),
}
"""Tests of a checkpoint's end, for every kind of state; applied first."""

EXACT: Final[Mapping[ExactSearch, tuple[Accept, ...]]] = {
    "threshold": (THRESHOLD,),
    "pos_end": (INSIDE_PREFIX, LEAVES_ONE),
    "longest": (INSIDE_PREFIX, LEAVES_ONE),
    "pos_max": (FIX_POS_MIN,),
    "inside": (ENDS_INSIDE,),
}
"""Tests for checkpoints of an exact state, applied second; windows use the released test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """A test of the checkpoints that a new prompt erases, and its text."""

    erases: Test
    rule: str


BEYOND_PREFIX: Final = Erase(
    erases=lambda cur, p: cur.n_tokens > p.prefix_end, rule="n_tokens > prefix_end"
)

ERASURES: Final[Mapping[Erasure, Erase]] = {
    "beyond": Erase(erases=lambda cur, p: cur.pos_max > p.pos_next, rule="pos_max > pos_next"),
    "equal": Erase(erases=lambda cur, p: cur.pos_max >= p.pos_next, rule="pos_max >= pos_next"),
    "pos_end": Erase(
        erases=lambda cur, p: cur.pos_end > p.prefix_end or cur.pos_max > p.pos_next,
        rule="pos_end > prefix_end or pos_max > pos_next",
    ),
    "prefix": BEYOND_PREFIX,
    "diverged": BEYOND_PREFIX,
    "prompt": Erase(erases=lambda cur, p: cur.pos_max > p.n_prompt, rule="pos_max > n_prompt"),
}
"""The released rule is "beyond" (#20671).

Trap: it keeps a checkpoint whose last token is exactly at `pos_next`, and every one at position 0,
although that token may differ from the new prompt's."""


def numbers_of(rule: str, cur: Checkpoint, prefix: Prefix) -> str:
    """A rule with the numbers compared: `pos_max > pos_next` as `0 > 0`."""
    if not rule:
        return ""
    values = {**cur.as_dict(), "pos_end": int(cur.pos_end)}
    values |= {
        "n_past": prefix.n_past,
        "pos_next": prefix.pos_next,
        "prefix_end": prefix.prefix_end,
        "pos_min_thold": prefix.pos_min_thold,
        "n_prompt": prefix.n_prompt,
    }
    return in_numbers(rule, values)


def accept_tests(rules: ReuseRules, *, exact: bool, thold: int) -> tuple[Accept, ...]:
    """The tests that a checkpoint has to pass, in upstream's order."""
    tests = LIMITS[rules.search_limit] + (EXACT[rules.exact_search] if exact else (THRESHOLD,))
    if rules.start_passes and thold == 0:
        tests = tuple(FROM_START if test is THRESHOLD else test for test in tests)
    return (*tests, INSIDE_PREFIX) if rules.exact_search == "pos_end" else tests


def erase_checkpoints(server: ServerContext, slot: Slot, task: Task, prefix: Prefix) -> None:
    """Drop the checkpoints that do not fit the new prompt (upstream: "erase any checkpoints")."""
    erasure = server.rules.reuse.erasure
    if erasure == "trimmed":
        # Lower the numbers of each checkpoint beyond the prefix, as #24797 proposed.
        #
        # Trap: the saved state stays as it is.
        #
        # a checkpoint    0 ──────────────────── 596    the state of 596 tokens
        # the new prompt  0 ───────── 480 ── x          480 match
        # recorded now    0 ───────── 480               still the state of 596
        pos_next, last = Count(prefix.pos_next), Pos(prefix.pos_next - 1)
        for index, cur in enumerate(slot.prompt.checkpoints):
            if cur.pos_max <= last:
                continue
            cut = replace(cur, n_tokens=pos_next, pos_min=min(cur.pos_min, last), pos_max=last)
            slot.prompt.checkpoints[index] = cut
            server.emit(
                CheckpointCut(
                    slot=slot.id,
                    task=task.id,
                    **cur.as_dict(),
                    cut_min=cut.pos_min,
                    cut_max=cut.pos_max,
                    cut_tokens=cut.n_tokens,
                    pos_next=pos_next,
                )
            )
        return
    # #25592's rule is for exact states alone; windows keep the released one.
    if erasure == "diverged" and not server.is_exact:
        erasure = "beyond"
    erase = ERASURES[erasure]
    kept = []
    for cur in slot.prompt.checkpoints:
        if erase.erases(cur, prefix):
            server.emit(
                CheckpointErased(
                    slot=slot.id,
                    task=task.id,
                    **cur.as_dict(),
                    n_swa=server.n_swa,
                    pos_next=prefix.pos_next,
                    size=cur.size,
                    rule=erase.rule,
                    numbers=numbers_of(erase.rule, cur, prefix),
                )
            )
            continue
        kept.append(cur)
        # Upstream prints nothing here: a checkpoint that includes tokens beyond the common prefix
        # stays, and a later prompt may resume from a stale state.
        if cur.n_tokens > prefix.prefix_end:
            server.emit(
                CheckpointKept(
                    slot=slot.id,
                    task=task.id,
                    **cur.as_dict(),
                    pos_next=prefix.pos_next,
                    shared=prefix.prefix_end,
                    rule=erase.rule,
                    numbers=numbers_of(erase.rule, cur, prefix),
                    made_by=cur.id_task,
                )
            )
    slot.prompt.checkpoints = kept


def create_checkpoint(
    server: ServerContext, slot: Slot, n_tokens: int, pos_min: int, pos_max: int
) -> None:
    """Make room in the list and append the current state (upstream: `create_checkpoint`)."""
    task, most, rules = slot.running, server.options.ctx_checkpoints, server.rules.checkpoints
    # Trap: room is made first, so the oldest may go although the new one only replaces one of equal
    # length.
    make_room(server, slot, task, most)
    if rules.supersede_equal:
        for held in list(slot.prompt.checkpoints):
            if held.n_tokens == n_tokens:
                _drop(server, slot, held, "superseded")
    # The drafter's data beside its memory (since b11434); without it the first draft is worse, the
    # reply is not.
    carries = server.drafter is not None and server.rules.slots.drafter_is_saved
    cur = Checkpoint(
        n_tokens=Count(n_tokens),
        # #25592, #24035: an exact state has no lower position, so its own is recorded as `pos_min`.
        pos_min=Pos(pos_max if rules.exact_pos_min and server.is_exact else pos_min),
        pos_max=Pos(pos_max),
        id_task=task.id,
        # Partial: a window's cells or a recurrent row. A plain cache ignores this and saves all, so
        # a companion's part grows with the prompt.
        state=server.contexts.save(slot.id, partial=True),
        drafter=server.drafter.carried(slot.id) if server.drafter and carries else None,
        approximate=slot.prompt.approximate,
    )
    slot.prompt.checkpoints.append(cur)
    server.emit(
        CheckpointCreated(
            slot=slot.id,
            task=task.id,
            index=len(slot.prompt.checkpoints),
            most=most,
            **cur.as_dict(),
            size=cur.size,
        )
    )


def make_room(server: ServerContext, slot: Slot, task: Task, most: int) -> None:
    """Drop checkpoints until one more fits (upstream: the loop in `create_checkpoint`)."""
    checkpoints = slot.prompt.checkpoints
    eviction = server.rules.checkpoints.eviction
    if eviction in {"thinned", "thinned-always"}:
        _thin_out(server, slot, task, most if eviction == "thinned" else 0)
    while len(checkpoints) >= most:
        victim = 0
        if eviction == "closest":
            # the one closest to its predecessor (#25592); the first one stays
            gaps = [
                (checkpoints[i].n_tokens - checkpoints[i - 1].n_tokens, i)
                for i in range(1, len(checkpoints))
            ]
            victim = min(gaps, default=(0, 0))[1]
        elif eviction == "densest":
            # The interior one with the closest neighbours (#24035); else the oldest.
            spans = [
                (checkpoints[i + 1].n_tokens - checkpoints[i - 1].n_tokens, i)
                for i in range(1, len(checkpoints) - 1)
            ]
            victim = min(spans, default=(0, 0))[1]
        _drop(server, slot, checkpoints[victim], "full")


def _thin_out(server: ServerContext, slot: Slot, task: Task, most: int) -> None:
    """Drop checkpoints of other tasks close after their predecessors (#28302)."""
    last = -1
    for checkpoint in list(slot.prompt.checkpoints):
        # Until #28302 every list was thinned (#25472), full or not: `most` is 0 then, and this
        # never holds.
        if len(slot.prompt.checkpoints) + 1 < most:
            return
        close = checkpoint.n_tokens <= last + server.options.checkpoint_min_step
        # The newest task's own checkpoints stay, and so does the first of the list.
        if checkpoint.id_task != task.id and last >= 0 and close:
            _drop(server, slot, checkpoint, "too-close")
        else:
            last = checkpoint.n_tokens


def _drop(server: ServerContext, slot: Slot, checkpoint: Checkpoint, reason: str) -> None:
    index = next(i for i, kept in enumerate(slot.prompt.checkpoints) if kept is checkpoint)
    del slot.prompt.checkpoints[index]
    server.emit(
        CheckpointDropped(
            slot=slot.id,
            task=slot.running.id,
            reason=reason,
            **checkpoint.as_dict(),
            size=checkpoint.size,
        )
    )


def gets_checkpoints(server: ServerContext, task: Task) -> bool:
    """True if memory and request support checkpoints (upstream: `do_checkpoint`)."""
    windowed = server.n_swa > 0 and not server.options.swa_full
    exact = server.is_exact and server.rules.checkpoints.exact_gets_some
    wanted = server.options.ctx_checkpoints > 0 and task.kind == "completion"
    # Full attention never needs one: any prefix of its cells can be resumed.
    return wanted and (exact or windowed)


def checkpoint_at_the_end(server: ServerContext, slot: Slot, task: Task) -> None:
    """Before #19408: one state, after the whole prompt is decoded (upstream: `update_slots`)."""
    # Trap: its last tokens are often the template's opening of the reply, which the next prompt of
    # the same chat does not have.
    if not server.rules.checkpoints.before_the_end and gets_checkpoints(server, task):
        checkpoint_here(server, slot, task, int(slot.prompt.n_tokens))


def checkpoint_here(server: ServerContext, slot: Slot, task: Task, n_tokens_start: int) -> None:
    """Create a checkpoint if it is not too close to the newest (upstream: `do_checkpoint`, second
    part).
    """
    rules, target = server.rules.checkpoints, server.contexts.target
    # Read from memory now, before this batch is decoded: positions of the tokens before it.
    pos_min, pos_max = target.seq_pos_min(slot.id), target.seq_pos_max(slot.id)
    minimum = rules.exact_minimum_prompt if server.is_exact else rules.minimum_prompt
    # -1: nothing is in memory yet, so there is no state to save.
    if pos_min < 0 or slot.prompt.n_tokens < minimum:
        return
    if _is_far_enough(server, slot, task, n_tokens_start):
        create_checkpoint(server, slot, n_tokens_start, pos_min, pos_max)


def _is_far_enough(server: ServerContext, slot: Slot, task: Task, n_tokens_start: int) -> bool:
    """True if the newest checkpoint is far enough (upstream: `do_checkpoint`, its end)."""
    rules, checkpoints = server.rules.checkpoints, slot.prompt.checkpoints
    if not checkpoints or n_tokens_start == slot.split_at:
        return True
    # #20428: exact states without a distance; only one that is not longer than the newest is left
    # out.
    if server.is_exact and not rules.exact_spaced:
        return n_tokens_start > checkpoints[-1].n_tokens
    near_prompt_end = task.n_tokens < slot.prompt.n_tokens + server.n_ubatch
    # Near the end without a distance (#25592): the last states are those that the next turn
    # resumes.
    if rules.spacing_waived_near_end and near_prompt_end:
        return True
    is_last_user_message = n_tokens_start == task.params.last_user_start
    # #24176: the start of the last user message, where an edited message diverges.
    if rules.spacing_waived_for_last_user and is_last_user_message:
        return True
    spacing = server.options.checkpoint_min_step if rules.spacing is None else rules.spacing
    return n_tokens_start > checkpoints[-1].n_tokens + spacing


def restore(server: ServerContext, slot: Slot, cur: Checkpoint) -> bool:
    """Restore the saved states (upstream: `load_tgt`, `load_dft`, `common_speculative_set_state`).

    False in releases that fall back to a reset.
    """
    contexts, state = server.contexts, cur.state
    loaded = contexts.load_target(state.target, slot.id, partial=True)
    loaded = loaded and contexts.load_companion(state.companion, slot.id, partial=True)
    # Later releases end the process.
    if not loaded and not server.rules.reuse.failed_restore_resets:
        where = "common_prompt_checkpoint::load_tgt"
        raise UpstreamAbort(where, "the saved state does not fit")
    if server.drafter is not None and cur.drafter is not None:
        server.drafter.carry(slot.id, cur.drafter)
    return loaded
