"""What is decoded in which batch, and where it lies after a shift: derived by hand from upstream.

No real server wrote these figures (there is no wheel of it): each follows from `update_slots`,
`batch_pending_prompt`, `process_batch_tokens` and `context_shift` of both commits. A batch is
written as runs: `0:16-19!` are positions 16 to 19 of slot 0, the last of them with logits.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from cachesim.engines import Request
from cachesim.engines.ik_llama.context import BatchToken, Decoded
from cachesim.engines.ik_llama.slot import Slot
from cachesim.units import SeqId
from tests.engines.ik_llama.worked_kit import SEED_ERA, Played, run_of


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


# -- no room -------------------------------------------------------------------------------------


# -- the context is full ---------------------------------------------------------------------------


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
