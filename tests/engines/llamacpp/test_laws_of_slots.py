"""Laws of llama.cpp's server and memory, each of which something breaks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.llamacpp import checkpoints, server_batch, update_slots
from cachesim.engines.llamacpp.drafter import NgramCache
from cachesim.engines.llamacpp.memory import attention, batch
from cachesim.engines.llamacpp.memory.attention import MARGIN, AttentionCache, LanePlan, Rows
from cachesim.engines.llamacpp.memory.batch import Splitter, Ubatch
from cachesim.engines.llamacpp.memory.blob import Reader
from cachesim.engines.llamacpp.memory.cells import Cells, Streams, free_cells
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.recurrent_cells import Planes, RecurrentCells
from cachesim.engines.llamacpp.observe import integrity, recomputed
from cachesim.engines.llamacpp.observe.integrity import check_calls
from cachesim.engines.llamacpp.observe.stored import check_actions
from cachesim.engines.llamacpp.router import Router
from cachesim.engines.llamacpp.search import LlamaLaws
from cachesim.engines.llamacpp.server_batch import Piece, ServerBatch
from cachesim.engines.llamacpp.server_context import ServerContext
from cachesim.engines.llamacpp.slot import Contexts
from cachesim.engines.llamacpp.vocabulary.events import (
    BatchDecoded,
    CacheEntryCompared,
    CacheEntryDropped,
    ContextShifted,
    DraftVerified,
    PromptStarted,
    SlotChosenByAge,
    SlotChosenBySimilarity,
    SlotReleased,
)
from cachesim.engines.seen import Seen
from cachesim.errors import ContractError
from cachesim.model.presets import PRESETS, preset
from cachesim.typed import of_kind, there_is
from cachesim.units import as_tokens
from tests.engines.asking import answer
from tests.engines.seen_kit import changed, further, replied, seen_of

UNIFIED: Final = {"parallel": 3, "kv_unified": True}


def served(model: str = "hybrid", **options: Any) -> Router:
    made = Engine.create(
        "llama.cpp@b11549", model=preset(model), options=options, arithmetic="ring"
    )
    ask(made, range(1, 100))
    return of_kind(Router, made)


def ask(engine: Engine, tokens: range) -> Seen:
    before = len(engine.events)
    reply = answer(engine, tokens, 3)
    return seen_of(reply, engine.events[before:], layers=frozenset(engine.network.spec.layers))


def nothing(*_: object, **__: object) -> None:
    return None


def more(method: Callable[..., int]) -> Callable[..., int]:
    return lambda *given, **named: method(*given, **named) + 1


def behind(clear: Callable[[RecurrentCells], None]) -> Callable[[RecurrentCells], None]:
    def change(cells: RecurrentCells) -> None:
        clear(cells)
        cells.head = 1

    return change


def turned(streams: Streams, ubatch: Ubatch) -> list[LanePlan]:
    plans = attention.plan_lanes(streams, ubatch)
    frames = [plan.frame._replace(positions=plan.frame.positions[::-1]) for plan in plans]
    rows = [np.arange(plan.frame.positions.size) + MARGIN for plan in plans]
    return [
        plan._replace(frame=frame, picked=picked[::-1])
        for plan, frame, picked in zip(plans, frames, rows, strict=True)
    ]


def from_the_first(
    cells: RecurrentCells, ubatch: Ubatch, find: Any = RecurrentCells.find_slot
) -> bool:
    cells.head = 0
    return of_kind(bool, find(cells, ubatch))


def one_more(
    memory: HybridMemory,
    split: Splitter,
    n_ubatch: int,
    init: Any = HybridMemory.init_batch,
    **more: bool,
) -> Any:
    return init(memory, split, n_ubatch + 1, **more)


def one_less(streams: Streams, stream: int) -> int:
    return free_cells(streams, stream) - 1


def undoes(whole: bool) -> Callable[..., None]:
    """Restores that are undone only of one sequence, or not at all."""
    original = HybridMemory.state_read

    def state_read(memory: HybridMemory, reader: Reader, seq: int, *, partial: bool) -> None:
        if whole and seq >= 0:
            original(memory, reader, seq, partial=partial)
            return
        if not partial:
            memory.attention.state_read(reader, seq, partial=False)
        memory.recurrent.state_read(reader, seq, partial=partial)

    return state_read


@pytest.mark.parametrize("model", PRESETS)
@pytest.mark.parametrize("options", [{}, {"parallel": 2}, UNIFIED])
def test_every_memory_does_what_its_calls_promise(model: str, options: dict[str, Any]) -> None:
    engine = served(model, **options)

    check_calls(engine.server.contexts.target)
    check_actions(engine.server)


@pytest.mark.parametrize(
    ("owner", "name", "instead", "why"),
    [
        (Context, "state_seq_get_size", more(Context.state_seq_get_size), "bytes, not"),
        (Context, "state_read", nothing, "0 of .* bytes of a state are read"),
        (Rows, "put_keys", nothing, "a sequence is restored otherwise"),
        (Planes, "put", nothing, "a sequence is restored otherwise"),
        (RecurrentCells, "join", nothing, "a copy has another content"),
        (Cells, "share", nothing, "a copy has another content"),
        (AttentionCache, "seq_add", nothing, "other positions are moved"),
        (RecurrentMemory, "seq_keep", nothing, "a kept sequence has another content"),
        (Streams, "_lower_head", nothing, "the head is after a freed cell"),
        (AttentionCache, "seq_div", nothing, "positions are not halved"),
        (RecurrentMemory, "seq_div", nothing, "positions are not halved"),
        (Rows, "clear", nothing, "data is not cleared"),
        (integrity, "pack", lambda _: b"", "a stored state is not read"),
        (integrity, "advance", nothing, "no tokens are put into it"),
        (integrity, "can_seq_rm", nothing, "a trial cut has another result"),
        (Splitter, "all_equal", nothing, "a batch is refused"),
        (Context, "state_seq_set_data", more(Context.state_seq_set_data), "bytes of a state are"),
        (RecurrentCells, "clear", behind(RecurrentCells.clear), "the head of a cleared memory"),
        (recomputed, "find_slot", nothing, "None are found for 1 tokens"),
        (recomputed, "apply_ubatch", nothing, "the head is at"),
        (NgramCache, "_following", nothing, "is drafted after"),
        (ServerBatch, "piece", lambda it, *_: Piece([(it.runs[0], 0, 1)]), "is divided otherwise"),
        (HybridMemory, "init_batch", one_more, "an ubatch has 4 tokens"),
        (batch, "keep_tails", lambda _, taken, *__: taken, "tokens are left of the sets"),
        (server_batch, "free_cells", lambda streams, _: streams.size, "than it has free cells"),
        (
            server_batch,
            "free_cells",
            lambda *given: free_cells(*given) - 1,
            "the free cells do not",
        ),
        (recomputed, "plan_lanes", turned, "in this order"),
        (RecurrentCells, "find_slot", from_the_first, "a new state is in cell"),
        (HybridMemory, "state_read", undoes(whole=False), "a cut state changes the others"),
        (HybridMemory, "state_read", undoes(whole=True), "a cut whole state leaves tokens"),
    ],
)
def test_a_call_that_breaks_its_promise_is_found(
    owner: Any, name: str, instead: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = served(**UNIFIED)
    ask(engine, range(150, 200))

    monkeypatch.setattr(owner, name, instead)

    with pytest.raises(ContractError, match=why):
        check_calls(engine.server.contexts.target)


def test_a_rollback_that_outlives_its_sequence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, remove = served("hybrid-mtp", spec_type="draft-mtp"), RecurrentMemory.seq_rm

    def seq_rm(memory: RecurrentMemory, seq: int, p0: int, p1: int) -> bool:
        depths = [*memory.rs_idx]
        removed = remove(memory, seq, p0, p1)
        memory.rs_idx = depths
        return removed

    monkeypatch.setattr(RecurrentMemory, "seq_rm", seq_rm)

    with pytest.raises(ContractError, match="a removed sequence is still to be rolled back"):
        check_calls(engine.server.contexts.target)


def skips_a_token(server: ServerContext) -> None:
    for slot in server.slots if server.most_turns > 1 else ():
        slot.generated += slot.generated[-1:]


@pytest.mark.parametrize(
    ("owner", "name", "instead", "why"),
    [
        (Contexts, "load_target", nothing, "a slot-restore is refused"),
        (Context, "state_seq_get_size", more(Context.state_seq_get_size), "a slot-save .* reports"),
        (ServerContext, "prompt_clear", nothing, "an erased slot has tokens"),
        (Contexts, "seq_rm", nothing, "an erased slot has cells"),
        (update_slots, "pass_over_replies", skips_a_token, "a reply at once"),
        (update_slots, "pass_over_replies", nothing, "replies at once take"),
    ],
)
def test_an_action_that_breaks_its_promise_is_found(
    owner: Any, name: str, instead: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = served(**UNIFIED)

    monkeypatch.setattr(owner, name, instead)

    with pytest.raises(ContractError, match=why):
        check_actions(engine.server)


def test_a_state_that_ends_in_a_later_stream_may_leave_cells() -> None:
    """The rows of slot 0 are read; the bytes end in the cell count of slot 1's stream."""
    engine = served("dense", parallel=2)
    ask(engine, range(1, 100))
    context = engine.server.contexts.target
    for slot in (0, 1):
        engine.submit(Request(prompt=as_tokens(range(9)), predict=1, slot=slot))
        engine.run()
    engine.slot_erase(1)
    engine.run()

    assert [True, False] == [context.seq_pos_max(seq) >= 0 for seq in (0, 1)]
    check_calls(context)


def _has_a_larger_batch(engine: Router) -> None:
    engine.server.contexts.target.n_batch += 1


def _moves_a_checkpoint(engine: Router) -> None:
    checkpoints = next(slot.prompt.checkpoints for slot in engine.server.slots)
    checkpoints[0] = replace(checkpoints[0], pos_max=checkpoints[0].pos_max - 1)


def _parks_an_entry_twice(engine: Router) -> None:
    entries = there_is(engine.server.cache).entries
    entries += entries[:1]


def _relabels_an_entry(engine: Router) -> None:
    there_is(engine.server.cache).entries[0].n_tokens += 1  # type: ignore[assignment]


def _uses_a_row_more(engine: Router) -> None:
    memory: Any = engine.server.contexts.target.memory
    memory.recurrent.cells.used += 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_has_a_larger_batch, "batch, ubatch, context, sequences are"),
        (_parks_an_entry_twice, "an entry is in another one"),
        (_relabels_an_entry, "an entry of 102 tokens ends at 100"),
        (_moves_a_checkpoint, "checkpoint .* has "),
        (_uses_a_row_more, "2 recurrent cells are used"),
    ],
)
def test_books_that_disagree_are_found(change: Callable[[Router], None], why: str) -> None:
    engine = served()
    ask(engine, range(150, 200))
    engine.check_integrity()

    change(engine)

    with pytest.raises(ContractError, match=why):
        engine.check_integrity()


SHIFTED: Final = ContextShifted(slot=2, task=1, n_keep=0, n_left=90, n_discard=5)
DROPPED: Final = CacheEntryDropped(reason="tokens", n_tokens=9, size=9, limit=9)


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (replied(slot=1), "slot 1 replies first"),
        (replied(equal=7), "7 tokens are equal"),
        (changed(SlotChosenBySimilarity, similarity=0.7), "slot 2 is chosen for 0.7"),
        (replied(drafted=4), "4 tokens are drafted"),
        (replied(accepted=2), "0 tokens are drafted, 2 accepted, of [] and 0"),
        (changed(BatchDecoded, n_tokens=9), "36 tokens are decoded"),
        (changed(SlotReleased, n_tokens=9), "slot 2 is released with 9 tokens"),
        (changed(PromptStarted, n_keep=9), "a prompt starts with 9 tokens to keep"),
        (further(SlotChosenByAge(slot=2, task=1, t_last_used=9)), "slot 2 is chosen by age"),
        (further(SHIFTED), "slot 2 is released with 121 tokens, not 116"),
        (further(replace(SHIFTED, n_discard=0)), "the context was shifted, and the reply does not"),
        (further(DROPPED), "an entry is dropped for 9 tokens, though its bytes fit"),
    ],
)
def test_each_law_of_a_request_can_be_broken(change: Callable[[Seen], Seen], detail: str) -> None:
    engine = served(**UNIFIED)
    breach = there_is(LlamaLaws(engine).broken(change(ask(engine, range(1, 120)))))

    assert detail == breach.detail[: len(detail)]


def test_a_batch_that_is_not_full_is_found() -> None:
    engine = served("dense", batch_size=64)
    laws, seen = LlamaLaws(engine), ask(engine, range(150, 249))
    first, second, *rest = (event for event in seen.events if isinstance(event, BatchDecoded))
    assert (64, 35) == (first.n_tokens, second.n_tokens)
    events = [replace(first, n_tokens=63), replace(second, n_tokens=36), *rest]
    others = [event for event in seen.events if not isinstance(event, BatchDecoded)]

    breach = there_is(laws.broken(replace(seen, events=[*others, *events])))

    assert "a batch has 63 tokens, not 64 of 99 left" == breach.detail


@pytest.mark.parametrize(
    ("prompt", "detail"),
    [
        ((4, *range(60, 73), 5, 80, 6), "around a gap are 13 and 1 tokens, of at most (12, 2)"),
        ((4, *range(60, 72), 5, 80, 81, 82, 6), "around a gap are 12 and 3 tokens, of at most"),
        ((4, 60, 61, 6), "a prompt around a gap has the marks (4, 4, 6)"),
    ],
)
def test_a_prompt_around_a_gap_that_is_no_batch_is_found(
    prompt: tuple[int, ...], detail: str
) -> None:
    engine = served("dense", batch_size=16)
    laws, before = LlamaLaws(engine), len(engine.events)
    reply = answer(engine, prompt, 3)
    seen = replace(seen_of(reply, engine.events[before:]), fields={"endpoint": "infill"})

    assert detail == there_is(laws.broken(seen)).detail[: len(detail)]


def test_a_router_with_too_many_models_is_found() -> None:
    engine = served("dense", models_max=1)
    engine.check_integrity()

    engine._loaded = {"one": engine.server, "other": engine.server}

    with pytest.raises(ContractError, match="2 models are loaded, 1 are allowed"):
        engine.check_integrity()


def test_a_wrong_share_of_an_entry_is_found() -> None:
    engine = served()
    ask(engine, range(150, 200))
    laws = LlamaLaws(engine)
    breach = laws.broken(changed(CacheEntryCompared, f_keep=0.5)(ask(engine, range(1, 120))))

    assert "an entry has 99 of 101 tokens, and 0.5" == there_is(breach).detail


def test_a_draft_that_is_rolled_back_otherwise_is_found() -> None:
    engine = served("hybrid-mtp", spec_type="draft-mtp")
    laws = LlamaLaws(engine)
    breach = laws.broken(changed(DraftVerified, rolled_back="luck")(ask(engine, range(1, 120))))

    assert there_is(breach).detail.endswith("tokens are rolled back by luck")


def test_a_server_that_never_drafts_is_found() -> None:
    engine = served("hybrid-mtp", spec_type="draft-mtp")
    laws = LlamaLaws(engine)
    engine.server.may_draft = False

    breach = laws.broken(ask(engine, range(1, 120)))

    assert "3 tokens are generated without a draft" == there_is(breach).detail


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        ("invalid_request_error", "a prompt of 99 tokens is refused: empty"),
        ("exceed_context_size_error", "a prompt of 99 tokens is refused in a slot of 4096"),
    ],
)
def test_a_refusal_without_a_reason_is_found(error: str, detail: str) -> None:
    engine = served()
    seen = ask(engine, range(1, 100))

    breach = there_is(LlamaLaws(engine).broken(replied(error=error, message="empty")(seen)))

    assert ("refusal", detail) == (breach.kind, breach.detail)


def _fills_an_idle_slot(engine: Router) -> None:
    engine.server.slots[2].prompt.tokens += as_tokens([5])


def _was_released_before(engine: Router) -> None:
    engine.server.slots[0].t_last_used = -1


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda engine: engine.server.cache.entries.clear(), "an entry of 101 tokens is gone"),
        (lambda engine: engine.server.cache.entries.pop(), "the 52 tokens of slot 1 are gone"),
        (_fills_an_idle_slot, "idle slot 2 is not emptied"),
        (_was_released_before, "slot 0 is released before others"),
    ],
)
def test_a_text_that_is_lost_is_found(change: Callable[[Router], None], detail: str) -> None:
    engine = served(**UNIFIED)
    ask(engine, range(150, 200))
    laws = LlamaLaws(engine)
    seen = ask(engine, range(220, 240))
    assert None is LlamaLaws(engine).broken(replace(seen, alone=False))

    change(engine)

    assert detail == there_is(laws.broken(seen)).detail[: len(detail)]


def test_a_whole_prompt_without_a_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served()
    laws = LlamaLaws(engine)
    monkeypatch.setattr(checkpoints, "create_checkpoint", nothing)

    breach = there_is(laws.broken(ask(engine, range(150, 240))))

    assert "a prompt of 90 tokens leaves no checkpoint" == breach.detail


def test_a_memory_of_fewer_cells_than_sequences_is_tried_too() -> None:
    engine = Engine.create(
        "llama.cpp@b9294",
        model=preset("dense"),
        options={"parallel": 5, "ctx_size": 2},
        arithmetic="ring",
    )
    check_calls(of_kind(Router, engine).server.contexts.target)
