"""A real network over a small memory, its histories kept beside, and the oracle's opinion."""

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.create import (
    create_memory,
    has_position_sections,
    rollback_depth,
)
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory, WindowPair
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.rules import MemoryRules
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle

WINDOW = 4


def tokens_of(n: int, *, of: int = 0) -> list[int]:
    """Tokens that differ between sequences and positions."""
    return [270 + (37 * i + 101 * of + i * i) % 200 for i in range(n)]


class Lab:
    """One context; `said[s]` is what sequence `s` should hold."""

    def __init__(
        self,
        preset: str,
        rules: MemoryRules,
        *,
        arithmetic: ArithmeticName = "ring",
        n_seq_max: int = 3,
        unified: bool = True,
        cells: int = 64,
        swa_cells: int = 16,
        n_ubatch: int = 4,
        n_rs_seq: int = 0,
    ) -> None:
        spec = tiny(preset)
        window = {"window": WINDOW} if spec.window else {}
        self.network = build(tiny(preset, **window), arithmetic)
        self.oracle = Oracle(self.network)
        depth = rollback_depth(self.network, n_rs_seq, rules)
        memory = create_memory(
            self.network,
            rules,
            n_seq_max=n_seq_max,
            unified=unified,
            cells=cells,
            swa_cells=swa_cells,
            n_rs_seq=depth,
        )
        self.context = Context(
            self.network,
            memory,
            rules=rules,
            n_ctx=cells,
            n_ctx_seq=cells,
            n_batch=cells,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            unified=unified,
            n_rs_seq=depth,
            sections=has_position_sections(self.network),
        )
        self.unified = unified
        self.said: list[list[int]] = [[] for _ in range(n_seq_max)]
        self.ret = 0

    def batch(self, news: dict[int, list[int]]) -> Batch:
        """Every sequence's new tokens behind what it said, all outputs wanted."""
        return Batch.joined(
            Batch.of(new, start=len(self.said[s]), seq=s, outputs=True) for s, new in news.items()
        )

    def say(self, news: dict[int, list[int]]) -> bool:
        """Decode, and compare every token's logits with a cold run's, bit for bit."""
        self.ret = self.context.decode(self.batch(news))
        self.context.check_integrity()
        if self.ret != 0:
            return False
        right, row = True, 0
        for s, new in news.items():
            before = len(self.said[s])
            self.said[s] += new
            cold = self.oracle.logits(
                as_tokens(self.said[s][: before + 1]), as_tokens([*self.said[s][before + 1 :], 0])
            )
            for expected in cold:
                right &= bool((self.context.logits(row) == expected).all())
                row += 1
        return right

    def go_on(self, seq: int, n: int = 1) -> bool:
        """A few more tokens of a sequence."""
        done = len(self.said[seq])
        return self.say({seq: tokens_of(done + n, of=seq + 7)[done:]})

    def cut(self, seq: int, n: int) -> bool:
        """Remove what lies behind the first `n` tokens; the history follows if that worked."""
        removed = self.context.seq_rm(seq, n, -1) if n else self.context.seq_rm(seq, -1, -1)
        if removed:
            del self.said[seq][n:]
        return removed

    def copy(self, src: int, dst: int) -> None:
        """Give `dst` what `src` has, after emptying it."""
        self.context.seq_rm(dst, -1, -1)
        self.context.seq_cp(src, dst, -1, -1)
        self.said[dst] = list(self.said[src])

    @property
    def window_is_whole(self) -> bool:
        """True if every sequence's window still has the keys of its next token."""
        memory = self.context.memory
        pair = memory.attention if isinstance(memory, HybridMemory) else memory
        if not isinstance(pair, WindowPair):
            return True
        for s, said in enumerate(self.said):
            if said and not 0 <= pair.swa.seq_pos_min(s) <= max(0, len(said) + 1 - WINDOW):
                return False
        return True

    @property
    def recurrent(self) -> RecurrentMemory | None:
        memory = self.context.memory
        if isinstance(memory, HybridMemory):
            return memory.recurrent
        return memory if isinstance(memory, RecurrentMemory) else None
