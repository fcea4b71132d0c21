"""What a search draws for ik_llama.cpp's server, and the laws of each request to it.

The laws are those of its slot, memory, checkpoints and drafts.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.server import IkLlama
from cachesim.engines.ik_llama.slot import GONE, Slot, similarity
from cachesim.engines.ik_llama.speculative import SEQ, AttentionCompanion
from cachesim.engines.ik_llama.vocabulary import (
    BatchRetried,
    CheckpointCreated,
    CheckpointErased,
    CheckpointRefused,
    CheckpointReset,
    CheckpointRestored,
    CompanionRefused,
    ContextShifted,
    DraftVerified,
    FullReset,
    PrefixMatched,
    PromptAlreadyCached,
    PromptEvicted,
    PromptLoaded,
    PromptLoadFailed,
    PromptSaved,
    SequenceTrimmed,
    SlotReleased,
    SlotSelected,
)
from cachesim.engines.search import ACTS, Corner, Guide, Scope, Search
from cachesim.engines.seen import Breach, Seen
from cachesim.engines.tokens import get_common_prefix
from cachesim.typed import there_is
from cachesim.units import SeqId, Token


class IkLaws:
    """The laws, with the content of slots and prompt cache before each request."""

    def __init__(self, engine: IkLlama) -> None:
        self._engine, self._rules, self._options = engine, engine.rules, engine.options
        self._agrees = True  # the token lists are those in memory
        self._cut = False  # a list was shifted, or a prompt truncated
        self._moved = False  # texts matched across different token boundaries
        self._used = dict.fromkeys(range(len(engine.slots)), -1)  # by slot: its last release
        self.begin_anew()

    def begin_anew(self) -> None:
        """Read the content of slots and prompt cache."""
        self._used |= {
            event.slot: at
            for at, event in enumerate(self._engine.events)
            if isinstance(event, SlotReleased)
        }
        self._lists = [list(slot.cache_tokens) for slot in self._engine.slots]
        self._entries = len(self._engine.cache.entries)

    def broken(self, seen: Seen) -> Breach | None:
        """The first law that a request breaks."""
        self._agrees = self._agrees and self._still_agrees(seen)
        self._moved = self._moved or any(
            matched.n_past != matched.n_past_prompt for matched in seen.of(PrefixMatched)
        )
        self._cut = self._cut or seen.reply.truncated
        broken: Iterator[str] = iter(())
        if seen.alone and seen.reply.error is None:
            slot = self._engine.slots[there_is(seen.reply.slot)]
            broken = self._all(seen, slot)
        detail = next(broken, None)
        self.begin_anew()
        return None if detail is None else Breach(kind="broken invariant", detail=detail)

    def _still_agrees(self, seen: Seen) -> bool:
        """False after a request from which on lists and memory may differ (oddities)."""
        reply, primary = seen.reply, self._engine.primary
        if reply.error not in {None, GONE} or reply.slot is None:
            return reply.error == GONE
        slot = self._engine.slots[reply.slot]
        kinds = set(map(type, seen.events))
        listed = self._rules.shift_always_drops_tokens or (
            seen.alone and slot.running.cache_prompt  # else another request may be running there
        )
        return not (
            kinds & {PromptLoadFailed, BatchRetried}
            or slot.stray
            or (reply.truncated and len(reply.prompt) >= slot.n_ctx)
            or (ContextShifted in kinds and not listed)
            or any(shifted.removed != shifted.n_discard for shifted in seen.of(ContextShifted))
            or (DraftVerified in kinds and primary.hybrid)
        )

    def _all(self, seen: Seen, slot: Slot) -> Iterator[str]:
        yield from self._selected(seen, slot)
        yield from self._shifted(seen, slot)
        yield from self._drafted(seen, slot)
        yield from self._resumed(seen)
        if self._agrees:
            yield from self._listed(seen, slot)
            yield from self._held()
            yield from self._checkpointed(seen, slot)

    # -- the slot ----------------------------------------------------------------------------

    def _selected(self, seen: Seen, slot: Slot) -> Iterator[str]:
        """The slot of the most similar list, else the one idle longest."""
        stripped, flags = self._engine.cache.stripped, self._options  # without reasoning
        prompt, lists = stripped(seen.reply.prompt), [*map(stripped, self._lists)]
        yield from self._without_reasoning(seen.reply.prompt, prompt)
        for event in seen.of(SlotSelected):
            if event.by == "id" or len(prompt) >= slot.n_ctx:  # compared as it is cut
                return
            least = np.float32(flags.slot_prompt_similarity)
            alike = max((_dice_ratio(text, prompt) for text in lists), default=np.float32(0))
            if event.by == "similarity":
                if event.similarity < max(alike, least):
                    yield f"a slot with similarity {event.similarity} is chosen, not {alike}"
            elif least and alike > least:
                yield f"no slot is similar enough, though one has {alike}"
            elif self._used[slot.id] != min(self._used.values()):
                yield f"slot {slot.id} is not the one that is idle for longest"
            yield from self._parked(seen, event, lists[slot.id], prompt)

    def _without_reasoning(self, prompt: Sequence[Token], kept: Sequence[Token]) -> Iterator[str]:
        """The compared text has no closed block, if no token crosses a tag."""
        cache = self._engine.cache
        if cache.tags is None:
            return
        texts = [*map(cache.text_of, prompt)]
        blocks = re.compile("{}.*?{}".format(*map(re.escape, cache.tags)), re.DOTALL)
        whole, starts = "".join(texts), {0, *accumulate(map(len, texts))}
        if all(starts >= {*match.span()} for match in blocks.finditer(whole)):
            wanted, text = blocks.sub("", whole), "".join(map(cache.text_of, kept))
            if text != wanted:
                yield f"{text[-40:]!r} is compared, without reasoning it is {wanted[-40:]!r}"

    def _parked(
        self, seen: Seen, chosen: SlotSelected, held: Sequence[Token], prompt: Sequence[Token]
    ) -> Iterator[str]:
        """The prompt cache: a list is saved if too little would be kept; entries are counted."""
        flags, cache = self._options, self._engine.cache
        kept = np.float32(get_common_prefix(held, prompt)) / np.float32(len(held) or 1)
        if not kept <= chosen.f_keep <= 1:
            yield f"{chosen.f_keep} of a list would be kept, of which {kept} is equal"
        low = self._lists[chosen.slot] and chosen.f_keep < np.float32(flags.cache_ram_similarity)
        long = 0 <= flags.cache_ram_n_min <= len(held)
        saved, known = seen.of(PromptSaved), seen.of(PromptAlreadyCached)
        if bool(low and long and flags.cache_ram != 0) != (len(saved) + len(known) == 1):
            yield f"a list of which {chosen.f_keep} would be kept is saved {len(saved)} times"
        after = self._entries + len(saved) - len(seen.of(PromptLoaded))
        after -= len(seen.of(PromptEvicted))
        now = len(cache.entries)
        if now > after or (now < after and not saved):
            yield f"{now} entries are in the prompt cache, not {after}"
        yield from self._loaded(seen, held, prompt)

    def _loaded(self, seen: Seen, held: Sequence[Token], prompt: Sequence[Token]) -> Iterator[str]:
        """The prompt cache: the most similar entry is loaded if more similar than the list."""
        rules, cache, loaded = self._rules, self._engine.cache, seen.of(PromptLoaded)
        if self._cut or seen.of(PromptLoadFailed):  # prompts are compared as lists were shifted
            return
        score = np.float32(loaded[0].similarity) if loaded else np.float32(1)
        if score <= _dice_ratio(held, prompt) and loaded:
            yield f"an entry with similarity {score} is loaded"
        if rules.ram_rewindable_only or rules.n_min_is_a_prefix or not self._options.cache_ram:
            return
        floor = np.float32(self._options.cache_ram_similarity if rules.ram_floor else 0)
        score = score if loaded else similarity(held, prompt, cache.text_of)
        for entry in map(cache.stripped, (prompt_entry.tokens for prompt_entry in cache.entries)):
            kept = np.float32(get_common_prefix(entry, prompt)) / np.float32(len(entry) or 1)
            if kept >= floor and _dice_ratio(entry, prompt) > score:
                yield f"an entry with similarity {_dice_ratio(entry, prompt)} is left for {score}"

    def _listed(self, seen: Seen, slot: Slot) -> Iterator[str]:
        """The list: the kept tokens, the rest of the prompt, the reply."""
        reply, drafts = seen.reply, bool(seen.of(DraftVerified))
        if reply.truncated:
            return
        new = list(reply.written[there_is(reply.cached) :])
        at = 0 if seen.of(FullReset) else seen.of(SequenceTrimmed)[0].p0
        if not self._moved and at != reply.cached:
            yield f"{reply.cached} tokens are cached, the slot is cut at {at}"
        if slot.cache_tokens[at:][: len(new)] != new:
            yield f"slot {slot.id} lists other tokens than were written from {at} on"
        if len(slot.cache_tokens) != at + len(new) and not drafts:
            yield f"slot {slot.id} lists {len(slot.cache_tokens)} tokens, not {at + len(new)}"

    def _held(self) -> Iterator[str]:
        """The memory of each slot: a cell for each listed token; saved lists too."""
        primary = self._engine.primary
        for slot in self._engine.slots:
            cells, count = primary.cells.of(SeqId(slot.id)), len(slot.cache_tokens)
            positions = sorted(primary.cells.pos[cells].tolist())
            wanted = [*range(count)][-1:] if primary.recurrent else [*range(count)]
            if positions != wanted:
                yield f"slot {slot.id} lists {count} tokens and has cells at {positions[-9:]}"
            alone = len(self._engine.slots) == 1 and not self._cut
            if alone and not np.array_equal(cells, np.arange(len(cells))):
                yield f"the only slot has cells {cells[-9:]}"
            for checkpoint in slot.checkpoints:
                if checkpoint.n_tokens and checkpoint.pos_max != checkpoint.n_tokens - 1:
                    yield (
                        f"a checkpoint of {checkpoint.n_tokens} tokens ends at {checkpoint.pos_max}"
                    )
        for entry in self._engine.cache.entries:
            if not primary.recurrent and len(entry.state.positions) != entry.length:
                yield f"an entry of {entry.length} tokens has {len(entry.state.positions)} cells"

    # -- truncation --------------------------------------------------------------------------

    def _shifted(self, seen: Seen, slot: Slot) -> Iterator[str]:
        """Whole blocks are dropped until a prompt fits; a full slot is shifted by the fields."""
        reply, room = seen.reply, slot.n_ctx
        given, total = seen.fields.get("n_discard", 0), len(reply.prompt)
        read, keep = there_is(reply.cached) + there_is(reply.processed), max(0, slot.n_keep)
        block = given or (room - keep) // 2
        if total < room or block <= 0:
            if read != total:
                yield f"{read} of {total} tokens are read"
        else:
            dropped = -(-(total - room + 1) // block) * block
            wanted = total - dropped if keep + dropped < total else total
            if read != wanted:
                yield f"{read} of {total} tokens are read, {wanted} fit"
        for event in seen.of(ContextShifted):
            keep = min(read if slot.n_keep < 0 else slot.n_keep, room - 4)
            before = event.n_past + event.removed
            if event.n_keep != keep or event.n_discard != (given or (before - keep) // 2):
                yield f"a shift keeps {event.n_keep} of {before} tokens, drops {event.n_discard}"
            if before < room - 1:
                yield f"a slot of {room} is shifted at {before}"

    # -- checkpoints -------------------------------------------------------------------------

    def _resumed(self, seen: Seen) -> Iterator[str]:
        for event in seen.of(CheckpointRefused):
            if event.pos_max < event.thold:
                yield f"a checkpoint at {event.pos_max} is refused, below {event.thold}"
        for reset in seen.of(CheckpointReset):
            if reset.pos_min < reset.thold:
                yield f"a memory from {reset.pos_min} on is reset, below {reset.thold}"

    def _checkpointed(self, seen: Seen, slot: Slot) -> Iterator[str]:
        """Checkpoints: at the places that follow from flags and lengths."""
        primary, reply = self._engine.primary, seen.reply
        if seen.of(DraftVerified) or self._moved or not reply.generated:
            return
        made = [created.n_tokens for created in seen.of(CheckpointCreated)]
        if not (primary.hybrid or primary.recurrent) or not self._options.ctx_checkpoints:
            if made:
                yield f"checkpoints are saved of {made} tokens"
            return
        old = [
            int(checkpoint.n_tokens)
            for checkpoint in slot.checkpoints
            if checkpoint.made_by != slot.id_task
        ]
        old += [erased.n_tokens for erased in seen.of(CheckpointErased) if not erased.rule]
        newest = max({*old} - {*made}, default=0)
        restored = seen.of(CheckpointRestored)
        begin = self._rules.interval_starts_at
        if restored and self._rules.restore_moves_interval:
            begin = restored[0].pos_max
        wanted = self._places(seen, begin, newest)
        if made != wanted:
            yield f"checkpoints are saved of {made} tokens, not of {wanted}"

    def _places(self, seen: Seen, begin: int, newest: int) -> list[int]:
        """Lengths at which a request saves a checkpoint.

        batches   [cached ... | ... | prompt - tolerance | prompt | + 1 ...... | end )
        saved     if the interval is over, at the tolerance, and at the end
        """
        flags, reply = self._options, seen.reply
        cached, prompt, end = there_is(reply.cached), len(reply.prompt), len(reply.written)
        stop = prompt - flags.ctx_checkpoints_tolerance
        stops = [stop] if cached < stop else []
        ends = [*stops]
        for start, until in pairwise((cached, *stops, prompt)):
            ends += range(start + flags.n_batch, until, flags.n_batch)
        places, last, ahead = [], begin, int(self._rules.interval_counts_tokens)
        interval = flags.ctx_checkpoints_interval
        for at in sorted({*ends, *range(prompt, end + 1)}):
            due = interval > 0 and last + interval <= at - 1 + ahead
            asked = (bool(stops) and stop <= at < prompt) or (at == prompt == stop)
            over = due and at != prompt and not asked
            if (asked or over or at == end) and at >= self._rules.minimum and at > newest:
                places.append(at)
                newest = at
                last = at - 1 if over else last
        return places

    # -- drafts ------------------------------------------------------------------------------

    def _drafted(self, seen: Seen, slot: Slot) -> Iterator[str]:
        """Drafts: limits, and the companion's memory after the last of them."""
        events, flags = seen.of(DraftVerified), self._options
        for event in events:
            if (
                not max(event.accepted, min(flags.draft_min, flags.draft_max))
                <= event.drafted
                <= flags.draft_max
            ):
                yield f"{event.accepted} of {event.drafted} drafts are accepted"
        verified = [(event.drafted, event.accepted) for event in events]
        wanted = self._verified(slot, len(seen.reply.prompt)) if not seen.reply.truncated else None
        if wanted is not None and verified != wanted:
            yield f"drafts are verified as {verified}, not as {wanted}"
        companion = self._engine.companion
        if isinstance(companion, AttentionCompanion):
            cells = companion.context.cells
            positions = cells.pos[cells.of(SEQ)]
            if len(np.unique(positions)) < len(positions):
                yield "the companion has two cells of one position"
        end, refused = len(slot.cache_tokens) - 1, seen.of(CompanionRefused)
        if any(companion_refused.position == 0 for companion_refused in refused) and not isinstance(
            companion, AttentionCompanion
        ):
            yield "an empty companion refuses the beginning of a prompt"
        if refused or companion is None:
            return
        if not events and len(seen.reply.generated) == 1 and companion.tail != end:
            yield f"the companion ends at {companion.tail}, the prompt at {end}"
        returned = 1 + sum(event.accepted + 1 for event in events)
        if not events or returned < len(seen.reply.generated):
            return
        last, by_step = events[-1], flags.recurrent_ckpt_mode in {"auto", "per-step"}
        again = self._engine.primary.hybrid and not by_step and last.accepted < last.drafted
        end += self._rules.commit_keeps_pending_row and not again
        if not events[-1].companion_tail == companion.tail == end:
            yield f"the companion ends at {companion.tail}, the slot's list at {end}"

    def _verified(self, slot: Slot, prompt: int) -> list[tuple[int, int]] | None:
        """Numbers of drafted and accepted tokens, of a request with drafts and a reply.

        The drafts of a step are cut so that neither the reply nor the context is exceeded.
        """
        request, flags, verified = slot.running, self._options, []
        reply, predict = request.reply or (), request.predict
        if request.drafts is None or not 0 <= predict <= len(reply) or self._moved:
            return None
        done, steps, most = 1, iter(request.drafts), flags.draft_max
        least = min(most, flags.draft_min)
        while done < predict and flags.companion != "none" and not slot.warmup_failed:
            room = min(most, predict - done - 1, slot.n_ctx - (prompt + done - 1) - 2)
            drafts = next(steps, ())[:room] if room >= max(least, 1) else ()
            accepted = get_common_prefix(drafts, reply[done:])
            if room >= max(least, 1) and len(drafts) >= least:  # verified, even an empty one
                verified.append((len(drafts), int(accepted)))
                done += accepted
            done += 1
        return verified


def _dice_ratio(held: Sequence[Token], prompt: Sequence[Token]) -> np.float32:
    """The Dice ratio of a list and a prompt, by tokens: at most that by text."""
    if not held:
        return np.float32(0)
    total = len(held) + len(prompt)
    return np.float32(2 * get_common_prefix(held, prompt)) / np.float32(total)


def _guide(_rules: Rules, flags: Options) -> Guide:
    """Fields of a context shift, near the context too; clients that leave within a batch."""
    room = flags.n_ctx_slot
    keeps = (-1, 0, 1, room // 2, room - 1, room)
    return Guide(
        fields=(
            *({"n_keep": keep} for keep in keeps),
            *({"n_discard": count} for count in (1, 8)),
            *({"cancel_after_ubatches": count} for count in (1, 2, 3)),
        ),
        templates=("strip-reasoning",),
    )


SEARCH: Final[Search[Rules, Options]] = Search(
    laws=IkLaws,
    guide=_guide,
    finds_again=lambda flags: int(
        flags.companion == "none" and (flags.parallel == 1 or flags.slot_prompt_similarity > 0)
    ),
    drafting={
        "companion": "attn",
        "draft_max": 3,
        "recurrent_ckpt_mode": "cpu",
        "parallel": 1,  # the server refuses drafts beside further slots
    },
    corners=(
        Corner(),
        Corner(),
        Corner(flags={"ctx_size": 256}, replies=60),
        Corner(flags={"companion": "attn", "draft_max": 3, "parallel": 1}, replies=12),
    ),
    scopes=(
        Scope(  # prompts have checkpoints from 64 tokens on
            flags={
                "ctx_size": 256,
                "batch_size": 64,
                "ubatch_size": 32,
                "ctx_checkpoints": 2,
                "ctx_checkpoints_interval": 16,
                "ctx_checkpoints_tolerance": 1,
            },
            lengths=(1, 65, 66),
            reply=5,
        ),
        Scope(
            flags={"ctx_size": 256, "batch_size": 16, "ubatch_size": 4, "parallel": 2},
            lengths=(1, 4, 5),
            acts=(*ACTS, "together"),
        ),
    ),
    incidents=("slot file",),
    exercised={
        "checkpoint-restored": "restore",
        "checkpoint-created": "checkpoint",
        "checkpoint-erased": "eviction",
        "prompt-evicted": "eviction",
        "prompt-loaded": "load",
        "prompt-saved": "save",
        "context-shifted": "shift",
        "draft-verified": "rollback",
        "checkpoint-reset": "full reprocessing",
        "full-reset": "full reprocessing",
    },
)
