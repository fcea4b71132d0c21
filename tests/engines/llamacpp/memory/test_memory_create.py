"""Which memory a model gets, and how large."""

import numpy as np
import pytest

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory, WindowPair
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.rules import B9094, B9509, B11434, MemoryRules
from cachesim.errors import OptionError
from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.presets import preset, tiny
from cachesim.model.store import Ubatch
from cachesim.model.trace import Traced
from cachesim.units import Count


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("dense", AttentionCache, None),
        ("swa", WindowPair, None),
        ("recurrent", RecurrentMemory, None),
        ("hybrid", HybridMemory, AttentionCache),
        ("hybrid-delta", HybridMemory, AttentionCache),
        ("hybrid-swa", HybridMemory, WindowPair),
    ],
)
def test_the_layers_decide_the_kind(name: str, kind: type, part: type | None) -> None:
    context = create_context(build(tiny(name), "ring"), ContextParams(), B11434)

    assert kind is type(context.memory)
    assert part is (type(context.memory.attention) if part else None)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (ContextParams(n_ctx=Count(1000), n_seq_max=3), (1536, 512, 1000, 512)),
        (ContextParams(n_ctx=Count(1000), n_seq_max=3, kv_unified=True), (1024, 1024, 1000, 512)),
        (ContextParams(n_ctx=Count(4096)), (4096, 4096, 2048, 512)),
        (ContextParams(n_ctx=Count(100), n_ubatch=0), (256, 256, 100, 100)),
        (ContextParams(n_ctx=Count(300), n_ubatch=1024), (512, 512, 300, 300)),
    ],
)
def test_sizes_are_padded_upwards(params: ContextParams, expected: tuple[int, ...]) -> None:
    context = create_context(build(tiny("dense"), "ring"), params, B9509)

    assert expected == (context.n_ctx, context.n_ctx_seq, context.n_batch, context.n_ubatch)


@pytest.mark.parametrize(
    ("window", "options", "cells"),
    [
        (1024, {}, 1536),
        (1024, {"n_seq_max": 4, "kv_unified": True}, 4096),
        (1024, {"n_seq_max": 4, "n_ctx": Count(16384)}, 1536),
        (128, {}, 768),
        (128, {"n_ctx": Count(256)}, 512 - 256),
        (128, {"swa_full": True}, 4096),
    ],
)
def test_a_window_cache_has_room_for_windows_and_one_ubatch(
    window: int, options: dict[str, int], cells: int
) -> None:
    network = build(tiny("swa", window=window), "ring")
    context = create_context(network, ContextParams(**options), B9509)  # type: ignore[arg-type]

    assert isinstance(context.memory, WindowPair)
    assert cells == context.memory.swa.streams.size


@pytest.mark.parametrize(
    ("rules", "depths"),
    [(B9094, (0, 0, 0, 0)), (B9509, (0, 0, 3, 0)), (B11434, (0, 0, 3, 3))],
    ids=lambda value: getattr(value, "name", ""),
)
def test_rollback_depends_on_architecture_and_release(
    rules: MemoryRules, depths: tuple[int, ...]
) -> None:
    names = ("recurrent", "hybrid", "hybrid-delta", "hybrid-swa")
    params = ContextParams(n_rs_seq=3)

    assert depths == tuple(
        create_context(build(tiny(name), "ring"), params, rules).n_rs_seq for name in names
    )


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
    head = network.companion()
    assert head is not None
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
