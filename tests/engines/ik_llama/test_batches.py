"""What is decoded in which batch, and where it lies after a shift: derived by hand from upstream.

No real server wrote these figures (there is no wheel of it): each follows from `update_slots`,
`batch_pending_prompt`, `process_batch_tokens` and `context_shift` of both commits. A batch is
written as runs: `0:16-19!` are positions 16 to 19 of slot 0, the last of them with logits.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest

from cachesim.engines import Request
from cachesim.engines.ik_llama.context import BatchToken, Decoded
from cachesim.engines.ik_llama.events import BatchRetried, ContextShifted, FullReset
from cachesim.engines.ik_llama.slot import Slot
from cachesim.units import SeqId
from tests.engines.ik_llama.worked_kit import LATER, SEED_ERA, Played, Steps, run_of

BOTH = pytest.mark.parametrize("profile", [SEED_ERA, LATER])


def text(tokens: Sequence[BatchToken]) -> str:
    """A batch in runs of one slot, the position counting up by one."""
    runs = groupby(enumerate(tokens), key=lambda each: (each[1].seq, each[1].pos - each[0]))
    found = []
    for (seq, _), members in runs:
        run = [token for _, token in members]
        first, last = run[0].pos, run[-1].pos
        where = f"{first}" if first == last else f"{first}-{last}"
        every = "!!" if len(run) > 1 and all(token.output for token in run) else ""
        found.append(f"{seq}:{where}" + (every or "!" * run[-1].output))
    return " ".join(found)


class Watched(Played):
    """A server whose decodes are written down, with what each returned if it was not 0."""

    def __init__(self, model: str, profile: str = SEED_ERA, **options: Any) -> None:
        super().__init__(model, profile, **options)
        self.batches: list[str] = []
        decode = self.server.primary.decode

        def decoding(batch: Sequence[BatchToken], *more: Any, **named: Any) -> Decoded:
            done = decode(batch, *more, **named)
            self.batches.append(text(batch) + (f" = {done.code}" if done.code else ""))
            return done

        self.server.primary.decode = decoding  # type: ignore[method-assign]

    def send(self, first: int, count: int, predict: int = 3, **options: Any) -> int:
        reply = run_of(20_000 + first, predict)
        asked = Request(prompt=run_of(first, count), reply=reply, options=options or None)
        return self.server.submit(asked)

    def said(self, ticket: int) -> tuple[str | None, int | None, int | None, int]:
        self.server.run()
        reply = self.server.reply(ticket)  # type: ignore[arg-type]
        assert reply is not None
        return reply.error, reply.cached, reply.processed, len(reply.generated)

    def slot(self, number: int = 0) -> Slot:
        return self.server.slots[number]

    def fed(self) -> list[str]:
        """What a companion decodes, loses and moves from now on."""
        companion, log = self.server.companion, list[str]()
        assert companion is not None
        seq_rm, seq_add, decode = companion.seq_rm, companion.seq_add, companion.decode

        def removing(p0: int, p1: int) -> bool:
            log.append(f"-{p0}:{p1 if p1 >= 0 else ''}")
            return seq_rm(p0, p1)

        def moving(p0: int, p1: int, delta: int) -> None:
            log.append(f"{p0}:{p1}{delta:+}")
            seq_add(p0, p1, delta)

        def decoding(tokens: Sequence[Any], first: Any, hidden: Any) -> Any:
            last = first + len(tokens) - 1
            log.append(f"+{first}" if first == last else f"+{first}-{last}")
            return decode(tokens, first, hidden)

        companion.seq_rm, companion.seq_add = removing, moving  # type: ignore[method-assign]
        companion.decode = decoding  # type: ignore[method-assign]
        return log

    def positions(self, number: int = 0) -> list[int]:
        cells = self.server.primary.cells
        return sorted(cells.pos[cells.of(SeqId(number))].tolist())


@BOTH
def test_a_prompt_is_read_in_batches_and_its_last_token_has_logits(profile: str) -> None:
    server = Watched("dense", profile, batch_size=8, ubatch_size=4)
    asked = server.send(300, 20)

    assert (None, 0, 20, 3) == server.said(asked)
    reply = server.server.reply(asked)  # type: ignore[arg-type]
    assert reply is not None
    assert (False, None) == (reply.truncated, reply.approximated)
    assert ["0:0-7", "0:8-15", "0:16-19!", "0:20!", "0:21!"] == server.batches
    assert list(range(22)) == server.positions()


@BOTH
def test_two_prompts_share_batches_and_those_that_generate_come_first(profile: str) -> None:
    server = Watched("dense", profile, batch_size=8, parallel=2, ctx_size=256)
    tickets = server.send(300, 12), server.send(2000, 10)

    assert [(None, 0, 12, 3), (None, 0, 10, 3)] == [server.said(each) for each in tickets]
    assert [
        "0:0-7",
        "0:8-11! 1:0-3",
        "0:12! 1:4-9!",
        "0:13! 1:10!",
        "1:11!",
    ] == server.batches


@BOTH
def test_a_hybrid_stops_before_the_prompts_end_and_again_at_it(profile: str) -> None:
    server = Watched("hybrid", profile, batch_size=64)
    server.said(server.send(300, 100))

    assert ["0:0-63", "0:64-94", "0:95-99!", "0:100!", "0:101!"] == server.batches
    assert [94, 101] == [each.pos_max for each in server.slot().checkpoints]


@BOTH
@pytest.mark.parametrize(("tolerance", "batches"), [(5, ["0:0-4!"]), (4, ["0:0", "0:1-4!"])])
def test_a_prompt_as_short_as_the_tolerance_is_read_at_once(
    profile: str, tolerance: int, batches: list[str]
) -> None:
    server = Watched("hybrid", profile, ctx_checkpoints_tolerance=tolerance)
    server.said(server.send(300, 5, 1))

    assert batches == server.batches


def test_checkpoints_every_interval_of_both_commits() -> None:
    """Seed era: 191 + 64 <= 1 + 254. Later: 191 + 64 <= 255, for it compares positions."""
    made = {}
    for profile in (SEED_ERA, LATER):
        server = Watched("hybrid", profile, batch_size=64, ctx_checkpoints_interval=64)
        server.said(server.send(300, 200, 61))
        made[profile] = [each.pos_max for each in server.slot().checkpoints]

    assert {
        SEED_ERA: [63, 127, 191, 194, 254, 259],
        LATER: [63, 127, 191, 194, 255, 259],
    } == made


# -- no room -------------------------------------------------------------------------------------


@BOTH
def test_without_a_run_of_cells_for_a_batch_it_is_halved(profile: str) -> None:
    """Free are cells 0 to 9, 16 and 22 to 31: none for 14 tokens, one for 8, one for the 6 left.

    The search for 14 ends at cell 11, so that for 8 finds cells 22 to 29, and that for 6 wraps.
    """
    server = Watched("dense", profile, parallel=2, ctx_size=32, batch_size=16)
    first, second = server.send(300, 10, 2), server.send(2000, 10, 2)
    server.said(first)
    server.said(second)
    server.said(server.send(300, 4, 1))
    asked = Request(prompt=run_of(5000, 14), reply=run_of(1, 1), slot=0)
    server.said(server.server.submit(asked))

    assert [
        "0:0-9! 1:0-5",
        "0:10! 1:6-9!",
        "1:10!",
        "0:3!",
        "0:0-13! = 1",
        "0:0-7",
        "0:8-13!",
    ] == server.batches
    cells = server.server.primary.cells
    assert [*range(8, 14), *[-1] * 4] == cells.pos[:10].tolist()
    assert [*range(6), -1, *range(6, 11)] == cells.pos[10:22].tolist()
    assert [*range(8), -1, -1] == cells.pos[22:].tolist()
    retried = [each for each in server.server.events if isinstance(each, BatchRetried)]
    assert [8] == [each.n_batch for each in retried]


@BOTH
def test_without_room_for_one_token_every_slot_is_answered(profile: str) -> None:
    """64 cells for 100 tokens; `n_keep` leaves nothing to drop. 2048 is halved down to 64, to 1."""
    server = Watched("dense", profile, ctx_size=64)
    asked = server.send(300, 100, n_keep=100)

    assert ("server_error", None, None, 0) == server.said(asked)
    whole, rest = "0:0-99! = 1", "0:64-{} = 1"
    assert [
        *[whole] * 5,
        "0:0-63",
        "0:64-99! = 1",
        *(rest.format(last) for last in (95, 79, 71, 67, 65)),
        "0:64 = 1",
    ] == server.batches
    assert 100 == len(server.slot().cache_tokens)
    assert server.slot().available


@BOTH
def test_a_client_that_leaves_during_a_decode_ends_all_that_run(profile: str) -> None:
    """After two ubatches of 8 the decode returns -3: slot 0 keeps 16 tokens.

    Slot 1 has none in memory, and one in its list: the last position of an empty sequence is 0.
    """
    options = {"parallel": 2, "ctx_size": 256, "batch_size": 32, "ubatch_size": 8}
    server = Watched("dense", profile, **options)
    server.said(server.send(5000, 30, 1))
    server.batches.clear()
    tickets = server.send(300, 40), server.send(2000, 30, cancel_after_ubatches=2)

    assert [("cancelled", None, None, 0)] * 2 == [server.said(each) for each in tickets]
    assert ["0:0-29! 1:0-1 = -3"] == server.batches
    assert [16, 1] == [len(slot.cache_tokens) for slot in server.server.slots]
    assert [16, 1] == [slot.n_past for slot in server.server.slots]
    assert ([*range(16)], []) == (server.positions(0), server.positions(1))
    assert all(slot.available for slot in server.server.slots)
    assert (None, 16, 14, 3) == server.said(server.send(2000, 30))


@BOTH
def test_a_slot_that_is_idle_stays_idle_where_a_decode_is_cancelled(profile: str) -> None:
    options = {"parallel": 2, "ctx_size": 256, "batch_size": 32, "ubatch_size": 8}
    server = Watched("dense", profile, **options)
    server.said(server.send(5000, 30, 1))
    ended = server.send(300, 40, cancel_after_ubatches=2)

    assert "cancelled" == server.said(ended)[0]
    assert [1, 2] == [slot.t_last_used for slot in server.server.slots]
    assert [30, 16] == [len(slot.cache_tokens) for slot in server.server.slots]


@BOTH
def test_a_server_that_stops_has_answered_an_idle_slot_before(profile: str) -> None:
    """`_fail` answers those that have a task; the reply of the one that was done stays."""
    server = Watched("dense", profile, parallel=2, ctx_size=64)
    done = server.send(5000, 5, 1)
    kept = server.said(done)
    failing = server.server.submit(
        Request(prompt=run_of(300, 80), reply=run_of(1, 1), options={"n_keep": 100})
    )

    assert "server_error" == server.said(failing)[0]
    assert kept == server.said(done)
    clock = [slot.t_last_used for slot in server.server.slots]
    assert sorted(clock) == [1, 2]


# -- the context is full ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("options", "shifts", "kept", "follows"),
    [
        ({}, [(0, 31, 32)], 0, 331),
        ({"n_keep": 10}, [(10, 26, 37)], 10, 336),
        ({"n_keep": -1}, [(40, 11, 52)] * 2, 40, 20_322),
        ({"n_discard": 5}, [(0, 5, 58)] * 4, 0, 320),
        ({"n_discard": 62}, [(0, 62, 1)], 0, 20_322),
        ({"n_keep": 62}, [(60, 1, 62)] * 16, 60, 20_336),
    ],
)
def test_a_shift_keeps_drops_and_moves(
    profile: str,
    options: dict[str, int],
    shifts: list[tuple[int, int, int]],
    kept: int,
    follows: int,
) -> None:
    """40 tokens of prompt and 39 of the reply go through 64 cells; a shift comes at 63.

    Half of what is not kept goes, or `n_discard`; kept are at most 60 of 64.
    """
    server = Watched("dense", profile, ctx_size=64)
    answer = server.said(server.send(300, 40, 40, **options))
    shifted = [each for each in server.server.events if isinstance(each, ContextShifted)]
    dropped = sum(drop for _, drop, _ in shifts)
    tokens = server.slot().cache_tokens
    whole = [*run_of(300, 40), *run_of(20_300, 40)]

    assert (None, 0, 40, 40) == answer
    assert shifts == [(each.n_keep, each.n_discard, each.n_past) for each in shifted]
    assert 79 - dropped == len(tokens)
    assert [*range(79 - dropped)] == server.positions()
    assert whole[:kept] == tokens[:kept]
    assert follows == tokens[kept]
    assert whole[kept + dropped : 79] == tokens[kept:]
    assert (kept, dropped) == (server.slot().n_kept_prompt, server.slot().n_discarded_prompt)
    assert server.slot().truncated


@BOTH
@pytest.mark.parametrize(
    ("options", "left", "dropped"),
    [({}, 36, 64), ({"n_keep": 10}, 46, 54), ({"n_discard": 20}, 60, 40)],
)
def test_a_prompt_that_does_not_fit_loses_whole_blocks(
    profile: str, options: dict[str, int], left: int, dropped: int
) -> None:
    """Blocks of half of 64 less what is kept: 100 - 2 * 32, 100 - 2 * 27; or two of 20."""
    server = Watched("dense", profile, ctx_size=64)
    first = server.said(server.send(300, 100, **options))
    slot = server.slot()
    keep = options.get("n_keep", 0)

    assert (None, 0, left, 3) == first
    assert [f"0:0-{left - 1}!", f"0:{left}!", f"0:{left + 1}!"] == server.batches
    assert [*run_of(300, keep), *run_of(300 + keep + dropped, left - keep)] == slot.prompt_tokens
    assert (keep, dropped) == (slot.n_kept_prompt, slot.n_discarded_prompt)
    assert slot.truncated


@BOTH
def test_the_block_of_a_cut_prompt_leaves_the_memory_of_the_slot(profile: str) -> None:
    """The list of 48 keeps its tokens where the block reaches its end; the memory loses them."""
    server = Watched("dense", profile, ctx_size=64)
    server.said(server.send(300, 100, n_keep=10))
    server.batches.clear()

    assert (None, 45, 1, 3) == server.said(server.send(300, 100, n_keep=10))
    assert ["0:45!", "0:46!", "0:47!"] == server.batches
    assert [*range(10), 45, 46, 47] == server.positions()


@BOTH
def test_without_a_shift_a_full_context_ends_the_reply(profile: str) -> None:
    options = {"parallel": 2, "ctx_size": 32, "batch_size": 16, "context_shift": False}
    server = Watched("dense", profile, **options)
    tickets = server.send(300, 14, 8), server.send(2000, 14, 8)

    for ticket in tickets:
        server.said(ticket)
        reply = server.server.reply(ticket)  # type: ignore[arg-type]
        assert reply is not None
        assert ("server_error", 2, True) == (reply.error, len(reply.generated), reply.truncated)
    assert ["0:0-13! 1:0-1", "0:14! 1:2-13!", "1:14!"] == server.batches


@BOTH
def test_a_refused_prompt_is_read_all_the_same(profile: str) -> None:
    """`release()` acts on a slot that generates; this one goes on reading."""
    server = Watched("hybrid", profile, parallel=2, ctx_size=32, batch_size=16)

    assert "exceed_context_size_error" == server.said(server.send(300, 20))[0]
    assert ["0:0-14", "0:15-19!"] == server.batches
    assert server.slot().available


def test_a_reply_says_what_was_read_unless_nothing_was() -> None:
    server = Watched("dense", batch_size=16)
    ticket = server.server.submit(Request(prompt=run_of(300, 10), predict=9))
    server.server.step()
    before = server.slot().reply("cancelled")
    server.server.step()
    after = server.slot().reply("cancelled")
    failed = server.slot().reply("server_error", "why")

    assert (0, 10, 1) == (after.cached, after.processed, len(after.generated) - 1)
    assert (0, 10) == (before.cached, before.processed)
    assert (None, None, "why") == (failed.cached, failed.processed, failed.message)
    assert ticket == server.slot().id_task


def test_a_table_of_cells_is_as_long_as_the_context_or_as_the_slots() -> None:
    sizes = {
        (model, slots): Watched(model, parallel=slots, ctx_size=64).server.primary.cells.size
        for model in ("dense", "hybrid", "recurrent")
        for slots in (1, 3)
    }

    assert {("dense", 1): 64, ("dense", 3): 64, ("hybrid", 1): 64, ("hybrid", 3): 64} == {
        key: size for key, size in sizes.items() if key[0] != "recurrent"
    }
    assert [1, 3] == [sizes["recurrent", 1], sizes["recurrent", 3]]


# -- speculative steps -----------------------------------------------------------------------------

FED = {
    SEED_ERA: [
        "+1000 +1001 +1002 -1001:1005 -1000: +1000-1002",
        "+1004 +1005 -1003:1007 -1003: +1003-1006",
        "+1008 +1009 -1007:1011 -1007: +1007",
        "+1009 +1010 -1008:1012 -1008: +1008-1009",
    ],
    LATER: [
        "+1000 +1001 +1002 -1001:1005 -1001: +1001-1003",
        "+1004 +1005 -1003:1007 -1004: +1004-1007",
        "+1008 +1009 -1007:1011 -1008: +1008",
        "+1009 +1010 -1008:1012 -1009: +1009-1010",
    ],
}
"""Four steps of 3 drafts, of which 2, 3, 0 and 1 are accepted; the later commit begins at M + 1."""


@BOTH
@pytest.mark.parametrize(
    ("model", "kind"),
    [("dense", "strict_tail"), ("hybrid-mtp", "strict_tail"), ("hybrid-mtp", "attn")],
)
def test_what_a_companion_is_fed_and_loses_in_four_steps(
    profile: str, model: str, kind: str
) -> None:
    server = Watched(model, profile, companion=kind, draft_max=3)
    log = server.fed()
    reply = run_of(4000, 11)
    server.full(run_of(300, 1000), reply, Steps(reply).drafts)
    read = ["-0:", "+0-999"] if model == "dense" else ["-0:", "+0-994", "-995:", "+995-999"]

    assert [*read, *" ".join(FED[profile]).split()] == log
    steps = ["0:1000-1003!!", "0:1003-1006!!", "0:1007-1010!!", "0:1008-1011!!"]
    assert steps == server.batches[-4:]


def test_a_full_reset_forgets_everything_of_the_slot() -> None:
    """A companion of one position refuses the cut at 999: primary, list and checkpoints go."""
    server = Watched("dense", companion="strict_tail", draft_max=3)
    reply = run_of(4000, 11)
    server.full(run_of(300, 1000), reply, Steps(reply).drafts)
    server.batches.clear()
    log = server.fed()
    answer = server.full(run_of(300, 1000), reply[:2])
    resets = [each for each in server.server.events if isinstance(each, FullReset)]

    assert (0, 1000) == (answer.cached, answer.processed)
    assert [999] == [each.p0 for each in resets]
    assert ["0:0-999!"] == server.batches[:1]
    assert ["-999:", "-0:", "+0-999"] == log[:3]


@BOTH
def test_a_shift_moves_the_companion_too(profile: str) -> None:
    """Context of 64: at 63 positions 0 to 30 go, 31 to 62 move down by 31."""
    server = Watched("dense", profile, companion="strict_tail", draft_max=3, ctx_size=64)
    log = server.fed()
    server.full(run_of(300, 40), run_of(4000, 40), ())

    moves = [each for each in log if each[0] not in "+-"]
    assert ["31:63-31"] == moves
    assert "-0:31" == log[log.index(moves[0]) - 1]


@BOTH
@pytest.mark.parametrize(
    ("ctx_size", "prompt", "reply", "steps"),
    [
        (256, 40, 9, ["40-43", "44-47"]),  # one token is left: no draft
        (256, 40, 4, ["40-42"]),  # three are left after the first: two drafts
        (64, 55, 12, ["55-58", "59-62"]),  # 64 - 59 - 2 is 3
        (64, 56, 12, ["56-59", "60-62"]),  # 64 - 60 - 2 is 2
    ],
)
def test_drafts_end_where_the_reply_or_the_context_does(
    profile: str, ctx_size: int, prompt: int, reply: int, steps: list[str]
) -> None:
    """Every draft of three is accepted: the forced reply is what is drafted."""
    server = Watched("dense", profile, companion="strict_tail", draft_max=3, ctx_size=ctx_size)
    said = run_of(4000, reply)
    drafts = tuple(said[at : at + 3] for at in range(1, reply, 4))
    asked = Request(prompt=run_of(300, prompt), predict=reply, reply=said, drafts=drafts)
    server.said(server.server.submit(asked))

    assert [f"0:{step}!!" for step in steps] == server.batches[1 : 1 + len(steps)]


@BOTH
def test_a_head_drafts_as_many_as_it_may(profile: str) -> None:
    """Exact arithmetic is always sure: three drafts a step, decoded one by one from M on."""
    server = Watched("hybrid-mtp", profile, companion="attn", draft_max=3)
    log = server.fed()
    server.server.submit(Request(prompt=run_of(300, 100), predict=6))
    server.server.run()

    assert "0:100-103!!" == server.batches[2]
    assert ["+100", "+101", "+102", "-101:105"] == log[4:8]


@BOTH
def test_a_draft_that_is_accepted_whole_moves_no_cell(profile: str) -> None:
    """A rollback writes a position into the cell of the sequence's number; here there is none."""
    server = Watched("hybrid-mtp", profile, companion="attn", draft_max=3)
    reply = run_of(4000, 5)
    server.full(run_of(300, 100), reply, (reply[1:4],))

    assert 0 == server.server.primary.cells.pos[0]
    assert [*range(104)] == server.positions()


def test_without_1669_rejected_drafts_leave_the_cells_alone() -> None:
    server = Watched("hybrid-mtp", SEED_ERA + "-1669", companion="attn", draft_max=3)
    reply = run_of(4000, 11)
    server.full(run_of(300, 100), reply, Steps(reply).drafts)

    assert [*range(110)] == server.positions()
