"""What a search draws for llama-server, and the laws that it checks request by request.

Each law follows from the slots and the prompt cache right before a request that was sent alone, and
from its events, and holds on every release and patch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cachesim.engines.base import Reply
from cachesim.engines.chat import FILL_MIDDLE, FILL_PREFIX, FILL_SUFFIX
from cachesim.engines.llamacpp.memory.create import SeqRm
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.rules import (
    ServerRules,
)
from cachesim.engines.llamacpp.server import INVALID, LlamaCpp
from cachesim.engines.llamacpp.update_slots import EXCEEDED
from cachesim.engines.llamacpp.vocabulary.events import (
    BatchDecoded,
    BatchRetried,
    CacheEntryCompared,
    CacheEntryDropped,
    CacheEntryLoaded,
    CacheEntryTooLarge,
    CheckpointCreated,
    ContextShifted,
    DraftMade,
    DraftVerified,
    PromptCacheUpdateBegun,
    PromptStarted,
    SlotChosenByAge,
    SlotChosenById,
    SlotChosenBySimilarity,
    SlotPurged,
    SlotReleased,
    TaskLaunched,
)
from cachesim.engines.search import ACTS, Corner, Guide, Scope, Search
from cachesim.engines.seen import Breach, Seen
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Tokens

LONG: Final = 80
"""Tokens of a prompt that gets a checkpoint on every release, with some before its end."""

MESSAGES: Final = frozenset({"message_spans", "message_delimiters"})
"""Fields that name where messages begin: a batch may end there."""

NEAR: Final = 1e-6
"""Difference of two shares, of which one has single precision."""


class LlamaLaws:
    """The laws, with the texts that the server held before a request."""

    def __init__(self, engine: LlamaCpp) -> None:
        self._engine = engine
        self._routes = len(engine.networks) > 1
        self._read(*self._texts())

    def begin_anew(self) -> None:
        """Read the texts of slots and prompt cache, and when each slot was released."""
        self._read(*self._texts())

    def _read(self, slots: list[Tokens], entries: list[Tokens]) -> None:
        server = self._engine.server
        self._slots, self._entries = slots, entries
        self._released = [slot.t_last_used for slot in server.slots]
        any_task = server.rules.selection.idle_saves_any_task
        self._saved = [any_task or slot.completed for slot in server.slots]  # before it is emptied

    def _texts(self) -> tuple[list[Tokens], list[Tokens]]:
        """The tokens of each slot, and of each entry of the prompt cache."""
        server = self._engine.server
        cached = () if server.cache is None else server.cache.entries
        slots = [tuple(slot.prompt.tokens) for slot in server.slots]
        return slots, [tuple(entry.tokens) for entry in cached]

    def broken(self, seen: Seen) -> Breach | None:
        """The first law that a request breaks."""
        found, refused, texts = None, None, self._texts()
        if seen.alone and not self._routes and seen.reply.slot is not None:
            found = next(self._broken(seen, *texts), None)
        if seen.reply.error is not None and not self._routes:
            refused = next(self._refused(seen.reply), None)
        self._read(*texts)
        if refused is not None:
            return Breach(kind="refusal", detail=refused)
        return None if found is None else Breach(kind="broken invariant", detail=found)

    def _refused(self, reply: Reply) -> Iterator[str]:
        """A prompt with tokens is not refused as an empty one, nor as too long where it fits."""
        prompt, n_ctx = len(reply.prompt), self._engine.server.options.n_ctx_slot
        if reply.error == INVALID and prompt:
            yield f"a prompt of {prompt} tokens is refused: {reply.message}"
        if reply.error == EXCEEDED and prompt < n_ctx:
            yield f"a prompt of {prompt} tokens is refused in a slot of {n_ctx}"

    def _broken(self, seen: Seen, slots: list[Tokens], entries: list[Tokens]) -> Iterator[str]:
        """The broken laws of a request, after which slots and entries hold these texts."""
        launched = seen.of(TaskLaunched)
        parents = [task_launched.slot for task_launched in launched if not task_launched.is_child]
        if parents != [seen.reply.slot]:
            yield f"slot {seen.reply.slot} replies first, slots {parents} were launched"
            return
        children = {task_launched.slot for task_launched in launched if task_launched.is_child}
        yield from self._chosen(seen)
        if seen.reply.error is None and not children:
            yield from self._work(seen)
            yield from self._batches(seen)
            yield from self._checkpoints(seen)
        if seen.fields.get("endpoint") == "infill":
            yield from self._gap(seen)
        yield from self._lost(seen, children, slots, entries)

    def _chosen(self, seen: Seen) -> Iterator[str]:
        """The slot with the longest common prefix above the threshold, else by age."""
        prompt, threshold = seen.reply.prompt, self._engine.server.options.slot_prompt_similarity
        common = [get_common_prefix(text, prompt) for text in self._slots]
        parked = [get_common_prefix(text, prompt) for text in self._entries]
        if seen.reply.equal != max((*common, *parked)):
            yield f"{seen.reply.equal} tokens are equal, of {common} in slots, {parked} parked"
        pinned = seen.of(SlotChosenById)
        for alike in () if pinned else seen.of(SlotChosenBySimilarity):
            share = max(common) / len(prompt)
            if common[alike.slot] < max(common) or abs(alike.similarity - share) > NEAR:
                yield f"slot {alike.slot} is chosen for {alike.similarity}, of {common} tokens"
        for aged in () if pinned else seen.of(SlotChosenByAge):
            oldest = min(self._released)
            share = max(common) / max(1, len(prompt))
            if self._released[aged.slot] != oldest or (0 < threshold < share - NEAR):
                yield f"slot {aged.slot} is chosen by age, of {self._released}, {common} tokens"
        for entry in () if pinned else seen.of(CacheEntryCompared):
            share = entry.lcp / entry.n_tokens
            if entry.f_keep is None or abs(entry.f_keep - share) > NEAR:
                yield f"an entry has {entry.lcp} of {entry.n_tokens} tokens, and {entry.f_keep}"
        last = [slot.t_last_used for slot in self._engine.server.slots]
        if last[int(seen.reply.slot or 0)] <= max(self._released):
            yield f"slot {seen.reply.slot} is released before others: {last}"

    def _work(self, seen: Seen) -> Iterator[str]:
        """The tokens decoded and held are those of prompt and reply."""
        reply, flags = seen.reply, self._engine.server.options
        prompt, made = len(reply.prompt), max(0, len(reply.generated) - 1)
        decoded = sum([batch_decoded.n_tokens for batch_decoded in seen.of(BatchDecoded)])
        shifts = seen.of(ContextShifted)
        drafts = [draft_made.n_tokens for draft_made in seen.of(DraftMade)]
        accepted = self._accepted(seen)
        if (reply.drafted, reply.accepted) != (sum(drafts), accepted):
            yield (
                f"{reply.drafted} tokens are drafted, {reply.accepted} accepted, "
                f"of {drafts} and {accepted}"
            )
        if self._engine.server.drafter is not None and not (drafts or shifts):
            room = flags.n_ctx_slot - prompt - 2  # at the first token, whose next one is drafted
            if min(len(reply.generated) - 2, room, flags.spec_draft_n_max) > 0:
                yield f"{len(reply.generated)} tokens are generated without a draft"
        if not drafts and decoded != (reply.processed or 0) + made:
            yield f"{decoded} tokens are decoded for {reply.processed} processed, {made} generated"
        held = prompt + made - sum([shift.n_discard for shift in shifts])
        for released in () if drafts else seen.of(SlotReleased):
            if released.n_tokens != held:
                n_tokens = released.n_tokens
                yield f"slot {released.slot} is released with {n_tokens} tokens, not {held}"
        given = seen.fields.get("n_keep", flags.keep), prompt
        for start in () if "endpoint" in seen.fields else seen.of(PromptStarted):
            if (start.n_keep, start.n_tokens) != given:
                yield f"a prompt starts with {start.n_keep} tokens to keep of {start.n_tokens}"
        for draft in seen.of(DraftVerified):
            if draft.rolled_back != self._undone(draft):
                n_wrong = draft.drafted - draft.accepted
                yield f"{n_wrong} tokens are rolled back by {draft.rolled_back}"
        for shift in shifts:
            n_keep = seen.fields.get("n_keep", flags.keep)
            keeps = min(prompt if n_keep < 0 else n_keep, flags.n_ctx_slot - 4)
            if shift.n_keep != keeps or shift.n_keep + shift.n_left > flags.n_ctx_slot:
                yield f"{shift.n_keep} tokens are kept and {shift.n_left} left, {keeps} wanted"
        if shifts and not reply.truncated:
            yield "the context was shifted, and the reply does not count as truncated"

    def _batches(self, seen: Seen) -> Iterator[str]:
        """Batches of a prompt are full but the last, where none ends to save the state there."""
        server, left = self._engine.server, seen.reply.processed or 0
        ends = server.is_exact or server.n_swa or seen.images or seen.chat
        if ends or MESSAGES & seen.fields.keys():
            return
        if seen.of(BatchRetried):
            return
        for decoded in seen.of(BatchDecoded):
            if left > 0:
                due = min(left, server.options.n_batch)
                if decoded.n_tokens != due:
                    yield f"a batch has {decoded.n_tokens} tokens, not {due} of {left} left"
                left -= decoded.n_tokens

    def _gap(self, seen: Seen) -> Iterator[str]:
        """Three quarters of a batch are for the text before a gap, one for that after it."""
        quarter, prompt = self._engine.server.options.batch // 4, tuple(seen.reply.prompt)
        at = prompt.index(FILL_SUFFIX) if FILL_SUFFIX in prompt else 0
        n_prefix, n_suffix = at - 1, len(prompt) - at - 2
        marks = prompt[0], prompt[at], prompt[-1]
        most = 3 * quarter, max(0, quarter - 2)
        if marks != (FILL_PREFIX, FILL_SUFFIX, FILL_MIDDLE):
            yield f"a prompt around a gap has the marks {marks}"
        if n_prefix > most[0] or n_suffix > most[1]:
            yield f"around a gap are {n_prefix} and {n_suffix} tokens, of at most {most}"

    def _accepted(self, seen: Seen) -> int:
        """Accepted tokens of all drafts; a restore decodes a draft's accepted part again."""
        total, replays = 0, False
        own = self._engine.server.rules.slots.replay_counts_correction
        for verified in seen.of(DraftVerified):
            if verified.rolled_back != "checkpoint":
                total += verified.accepted - (replays and not own)
            replays = verified.rolled_back == "checkpoint"
        return total

    def _checkpoints(self, seen: Seen) -> Iterator[str]:
        """A prompt that is computed as a whole leaves a checkpoint, where the memory needs any."""
        server, flags, reply = self._engine.server, self._engine.server.options, seen.reply
        exact = server.is_exact and server.rules.checkpoints.exact_gets_some
        needs = exact or (server.n_swa > 0 and not flags.swa_full)
        whole = reply.cached == 0 and len(reply.prompt) >= LONG and self._completes(seen)
        if not (needs and whole and flags.ctx_checkpoints) or seen.images:
            return
        slot = server.slots[int(reply.slot or 0)]
        if not (seen.of(CheckpointCreated) or slot.prompt.checkpoints):
            yield f"a prompt of {len(reply.prompt)} tokens leaves no checkpoint"

    def _undone(self, verified: DraftVerified) -> str:
        """The rollback of a draft: a cut, unless the memory needs its state before the draft."""
        server, wrong = self._engine.server, verified.drafted - verified.accepted
        planes = server.contexts.target.n_rs_seq
        kind = server.seq_rm_type
        cuts = kind is not SeqRm.FULL and not (kind is SeqRm.RS and wrong > planes)
        return "nothing" if not wrong else "cut" if cuts else "checkpoint"

    def _lost(
        self, seen: Seen, children: set[int], held: list[Tokens], parked: list[Tokens]
    ) -> Iterator[str]:
        """Texts of idle slots and of the prompt cache stay, or events name what dropped them."""
        server = self._engine.server
        cache, flags = server.cache, server.options
        dropped = seen.of(CacheEntryDropped)
        if cache is not None and cache.limit_size > 0:
            for drop in dropped:
                if drop.reason == "tokens":  # the limit is what fits into the bytes
                    yield f"an entry is dropped for {drop.limit} tokens, though its bytes fit"
        loaded = seen.of(CacheEntryLoaded)
        purged = any((dropped, seen.of(CacheEntryTooLarge), seen.of(SlotPurged)))
        if purged or not self._completes(seen):
            return
        for text in () if loaded else self._entries:
            if not _is_held(text, parked):
                yield f"an entry of {len(text)} tokens is gone from the prompt cache"
        own, swapped = (
            int(seen.reply.slot or 0),
            {begun.slot for begun in seen.of(PromptCacheUpdateBegun)},
        )
        for slot, text in enumerate(self._slots):
            taken = slot == own or slot in children
            stays = (not taken and self._saved[slot]) or slot in swapped
            if stays and not _is_held(text, (*parked, *held)):
                yield f"the {len(text)} tokens of slot {slot} are gone"
            parks = flags.unified and flags.cache_idle_slots and cache is not None
            if not taken and parks and held[slot]:
                yield f"idle slot {slot} is not emptied"

    def _completes(self, seen: Seen) -> bool:
        return bool(seen.fields.get("endpoint", "completion") == "completion")


def _is_held(text: Tokens, texts: Sequence[Tokens]) -> bool:
    return text in texts or any(longer[: len(text)] == text for longer in texts)


TINY: Final = {
    "ctx_size": 256,
    "batch_size": 8,
    "ubatch_size": 4,
    "ctx_checkpoints": 2,
    "checkpoint_min_step": 0,
    "checkpoint_every_nt": 4,
}
"""A checkpoint is made before the last four tokens of a prompt, and a ubatch before these."""


def _guide(_rules: ServerRules, flags: Options) -> Guide:
    """Infills, moved chunks, fields of a context shift; images; models that are loaded in turn."""
    fields: list[dict[str, Any]] = [{"endpoint": "infill"}]
    if flags.cache_reuse:
        fields += [{"n_cache_reuse": count} for count in (0, 1, 4)]
    if flags.context_shift:
        fields += [{"n_keep": keep} for keep in (-1, 1, flags.n_ctx_slot - 1)]
        fields += [{"n_discard": count} for count in (1, 8)]
    alone = flags.context_shift or flags.cache_reuse or flags.spec_type != "none"
    return Guide(
        fields=tuple(fields),
        models=({"models_max": 1}, {"models_max": 2}),
        images="none" if alone else "few",
    )


SEARCH: Final[Search[ServerRules, Options]] = Search(
    laws=LlamaLaws,
    guide=_guide,
    reuse_flags=("cache_prompt",),
    finds_again=lambda flags: int(flags.parallel == 1 or flags.slot_prompt_similarity > 0),
    drafting={"spec_type": "draft-mtp"},
    adapter_flag="lora",
    hunted=(
        {},
        {"context_shift": True, "ctx_size": 256},
        {"swa_full": True},
        {"lora": "A"},
        {"parallel": 2, "kv_unified": True},
    ),
    corners=(
        *(Corner(),) * 4,
        Corner(flags={"ctx_size": 256, "context_shift": True, "ubatch_size": 64}, replies=60),
        Corner(flags={"batch_size": 32}),
        Corner(flags={"ubatch_size": 64, "batch_size": 256, "cache_ram": 0}),
        Corner(flags={"cache_ram": 1}),
        Corner(window=8, layers=frozenset({"window"})),
    ),
    scopes=(
        Scope(flags=TINY, lengths=(1, 5, 9), window=4),
        Scope(
            flags={**TINY, "parallel": 2},
            lengths=(1, 5),
            acts=(*ACTS, "together", "cancel"),
            window=4,
        ),
        Scope(  # until b9294 states have checkpoints from 64 tokens on
            flags={
                "ctx_size": 256,
                "batch_size": 64,
                "ubatch_size": 16,
                "ctx_checkpoints": 2,
                "checkpoint_min_step": 16,
                "checkpoint_every_nt": 16,
            },
            lengths=(65, 70),
        ),
    ),
    incidents=("cancel", "slot file", "completions", "arrival", "trips"),
    exercised={
        "checkpoint-restored": "restore",
        "checkpoint-created": "checkpoint",
        "cache-entry-dropped": "eviction",
        "checkpoint-dropped": "eviction",
        "checkpoint-erased": "eviction",
        "cache-entry-loaded": "load",
        "prompt-saving": "save",
        "context-shifted": "shift",
        "chunk-reused": "shift",
        "draft-verified": "rollback",
        "full-reprocessing": "full reprocessing",
    },
)
