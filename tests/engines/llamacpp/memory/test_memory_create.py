"""The memory of a model, and its size."""

import numpy as np
import pytest

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.memory.rules import B9509, B11434
from cachesim.errors import OptionError
from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.presets import preset, tiny
from cachesim.model.store import Ubatch
from cachesim.model.trace import Traced
from cachesim.typed import there_is
from cachesim.units import Count


def test_states_have_the_real_servers_bytes() -> None:
    def size(name: str, n: int) -> int:
        context = create_context(build(preset(name), "ring"), ContextParams(), B11434)
        assert context.decode(Batch.of((300,) * n, start=0)) == 0
        return context.state_seq_get_size(0)

    row = 2 * 2 * 16  # f16, two heads of 16
    assert 8 + 8 + 100 * 12 + 16 + 2 * 4 * (12 + 100 * row) == size("dense", 100)
    conv, state = 4 * 3 * (128 + 2 * 2 * 16), 4 * 16 * 128
    assert 8 + 4 + 8 + 8 + 4 * (12 + conv) + 4 * (12 + state) == size("recurrent", 10)


def test_a_companion_keeps_a_plain_cache_of_its_own_and_reads_hidden_rows() -> None:
    network = build(tiny("hybrid-mtp"), "ring")
    head = there_is(network.companion())
    target = create_context(network, ContextParams(n_rs_seq=2), B9509)
    companion = create_context(head, ContextParams(n_rs_seq=2), B9509)
    assert (AttentionCache, 0) == (type(companion.memory), companion.n_rs_seq)

    tokens = tuple(range(300, 309))
    assert target.decode(Batch.of(tokens, start=0)) == 0
    hidden = np.stack([target.hidden(row) for row in range(9)])
    cold = head.run(
        Ubatch(tokens=np.array(tokens), positions=np.arange(9), hidden=hidden), PlainStore(head)
    ).logits

    for first, last in ((0, 4), (4, 7), (7, 9)):
        part = Batch.of(tokens[first:last], start=first, outputs=True, hidden=hidden[first:last])
        assert companion.decode(part) == 0
        for row in range(last - first):
            assert (cold[first + row] == companion.logits(row)).all()
    assert companion.seq_rm(0, 5, -1)
    assert companion.decode(Batch.of(tokens[5:6], start=5, hidden=hidden[5:6])) == 0
    assert (cold[5] == companion.logits(0)).all()


@pytest.mark.parametrize("name", ["dense", "swa", "recurrent", "hybrid", "hybrid-mtp"])
def test_a_traced_network_has_the_same_sizes(name: str) -> None:
    def size(network: object) -> int:
        context = create_context(network, ContextParams(), B11434)  # type: ignore[arg-type]
        assert context.decode(Batch.of((300, 301, 302), start=0)) == 0
        return context.state_seq_get_size(0)

    plain = build(tiny(name), "ring")
    assert size(plain) == size(Traced(plain))


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        create_context(build(tiny("dense"), "ring"), ContextParams(n_ctx=Count(0)), B9509)
