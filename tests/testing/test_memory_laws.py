"""The laws of a memory, held by the ports, and broken by memories with one mistake."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.memory.rules import B11434
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.testing import BrokenLawError, check_memory
from cachesim.units import Tokens


class Port:
    """A context of llama.cpp behind the protocol of the laws."""

    def __init__(self, model: str) -> None:
        params = ContextParams(n_ctx=512, n_batch=64, n_ubatch=64, n_seq_max=2)
        self.context: Context = create_context(build(preset(model), "ring"), params, B11434)

    def feed(self, seq: int, tokens: Tokens) -> Hashable:
        start = self.context.seq_pos_max(seq) + 1
        assert self.context.decode(Batch.of(tokens, start=start, seq=seq)) == 0
        return self.context.logits(len(tokens) - 1).tobytes()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        return self.context.seq_rm(seq, p0, p1)

    def seq_pos_max(self, seq: int) -> int:
        return self.context.seq_pos_max(seq)

    def seq_cp(self, src: int, dst: int) -> None:
        self.context.seq_cp(src, dst, -1, -1)

    def save(self, seq: int) -> Any:
        return self.context.state_seq_get_data(seq)

    def load(self, seq: int, state: Any) -> bool:
        self.context.seq_rm(seq, -1, -1)
        return self.context.state_seq_set_data(state, seq) > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["dense", "recurrent", "hybrid"])
def test_the_ports_hold_all_laws(model: str) -> None:
    check_memory(lambda: Port(model), examples=60)


class Plain:
    def __init__(self) -> None:
        self.held: list[list[int]] = [[], []]

    def feed(self, seq: int, tokens: Tokens) -> Hashable:
        self.held[seq].extend(tokens)
        return tuple(self.held[seq])

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        del self.held[seq][p0 : None if p1 < 0 else p1]
        return True

    def seq_pos_max(self, seq: int) -> int:
        return len(self.held[seq]) - 1

    def seq_cp(self, src: int, dst: int) -> None:
        self.held[dst] = list(self.held[src])

    def save(self, seq: int) -> Any:
        return list(self.held[seq])

    def load(self, seq: int, state: Any) -> bool:
        self.held[seq] = list(state)
        return True


class SharedCopy(Plain):
    def seq_cp(self, src: int, dst: int) -> None:
        self.held[dst] = self.held[src]


class LiveSave(Plain):
    def save(self, seq: int) -> Any:
        return self.held[seq]


class HalfRefusal(Plain):
    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        super().seq_rm(seq, p0 + 1, p1)
        return False


class StaleState(Plain):
    """Positions are cut, the state is not."""

    def __init__(self) -> None:
        super().__init__()
        self.folded: list[list[int]] = [[], []]

    def feed(self, seq: int, tokens: Tokens) -> Hashable:
        super().feed(seq, tokens)
        self.folded[seq].extend(tokens)
        return tuple(self.folded[seq])


@pytest.mark.thorough
def test_a_memory_of_lists_holds_all_laws() -> None:
    check_memory(Plain)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("make", "law"),
    [
        (SharedCopy, "uncached answers"),
        (LiveSave, "save, load"),
        (HalfRefusal, "refusal is inert"),
        (StaleState, "uncached answers"),
    ],
)
def test_one_mistake_breaks_one_law(make: Callable[[], Plain], law: str) -> None:
    with pytest.raises(BrokenLawError) as told:
        check_memory(make)

    assert law == told.value.law
    assert len(told.value.story) <= 5
