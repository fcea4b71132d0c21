"""DeepSeek V4: five groups of four block sizes, whose common hits are multiples of 256 tokens."""

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.managers import SlidingWindow
from cachesim.engines.vllm.server import Vllm
from cachesim.errors import CachesimError, ContractError, SpecError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.prove.vllm.files import PACKAGES
from cachesim.typed import of_kind
from conformance.real.vllm.playing import play
from conformance.real.vllm.scheduler import COMPRESSED
from conformance.real.vllm.workloads import draw_compressed
from tests.engines.conversations import Conversations, judged

MODEL = preset("swa", compressed=True, window=128)
NEWEST = FAMILY.release("0.33.0").rules
OLDER = [each for each in FAMILY.real()[:-1] if each != "0.19.1"]


def server(profile: str, model: ModelSpec = MODEL, **options: Any) -> Vllm:
    return of_kind(Vllm, Engine.create(profile, model=build(model, "ring"), options=options))


class Workload(Conversations):
    """A server of DeepSeek V4 with random options, and the requests that it is sent."""

    together = (1, 1, 2, 3)
    longest = (1200, 200, 1250)

    def __init__(self, seed: int, profile: str) -> None:
        self.rng = random.Random(f"compressed {seed}")
        self.network = build(MODEL, "ring")
        choose = self.rng.choice
        options: dict[str, Any] = {
            "block_size": 256,
            "num_gpu_blocks_override": choose([560, 900, 3000]),
            "max_model_len": 1300,
            "max_num_batched_tokens": choose([64, 300, 8192]),
            "max_num_seqs": choose([1, 2, 16]),
            "prefix_cache_retention_interval": choose([-1, 0, 256, 512]),
            "speculative_method": choose(["none", "none", "ngram", "mtp"]),
        }
        self.engine = Engine.create(profile, model=self.network, options=options)
        super().__init__()

    def request(self) -> Request:
        return Request(prompt=self.prompt(256), predict=self.rng.randint(1, 20))

    def rounds(self) -> int:
        return 6


def answers(profile: str, seeds: range) -> tuple[Counter[bool], int]:
    """Right and wrong answers, and the cached tokens of all."""
    found = [each for seed in seeds for each in judged(Workload(seed, profile))]
    return Counter(same for _, same in found), sum(reply.cached or 0 for reply, _ in found)


@pytest.mark.parametrize("release", ["0.26.0", "0.33.0"])
def test_answers_from_hits_of_all_groups_are_the_cold_ones(release: str) -> None:
    right, cached = answers(f"vllm@{release}", range(8))

    assert {True} == set(right)
    assert cached > 2000


@pytest.mark.parametrize("block", [64, 4])
def test_a_hit_with_one_block_is_answered_wrongly_where_windows_or_states_have_two(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = SlidingWindow.needed

    def one_in_its_group(manager: SlidingWindow, *, use_eagle: bool) -> int:
        return 1 if manager.block_size == block else needed(manager, use_eagle=use_eagle)

    monkeypatch.setattr(SlidingWindow, "needed", one_in_its_group)
    with pytest.raises(ContractError, match="where the groups can resume at"):
        answers("vllm@0.33.0", range(8))
    monkeypatch.setattr("cachesim.engines.vllm.observe.check_lookups", lambda *_: None)
    right, _ = answers("vllm@0.33.0", range(8))

    assert right[False] > 0


@pytest.mark.parametrize(
    ("release", "blocks"), [("0.28.0", [256, 64, 64]), ("0.29.0", [64, 64, 256])]
)
def test_groups_have_the_blocks_of_the_release(release: str, blocks: list[int]) -> None:
    engine = server(f"vllm@{release}", speculative_method="mtp")

    found = [(group.block, group.window, group.eagle) for group in engine.manager.groups]

    assert [*blocks, 4, 8] == [block for block, _, _ in found]
    assert {(256, 0, False), (64, 128, False), (64, 128, True), (4, 8, False), (8, 128, False)} == {
        *found
    }
    assert (256, 4) == (engine.manager.sizes.scheduler_block, engine.manager.sizes.hash_block)


@pytest.mark.parametrize(
    ("profile", "wishes", "options", "says"),
    [
        ("vllm@0.33.0", {"window": 32}, {}, "'window' is 32; layers of DeepSeek V4 have 128"),
        ("vllm@0.33.0", {}, {"block_size": 64}, "'block_size' is 64; layers of DeepSeek V4"),
        ("vllm@0.33.0", {}, {"connector": "store"}, "'connector' is store; layers of"),
        ("vllm@0.33.0", {}, {"speculative_method": "eagle"}, "with its own head: write mtp"),
        ("vllm@0.19.1", {}, {}, "has no layers of DeepSeek V4"),
        ("sglang@0.5.23", {}, {}, "sglang has no rules for DeepSeek V4's layers"),
        ("mlx-lm@0.32.0", {}, {}, "mlx-lm has no rules for DeepSeek V4's layers"),
    ],
)
def test_what_the_model_does_not_have_is_refused(
    profile: str, wishes: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(CachesimError, match=re.escape(says)):
        server(profile, replace(MODEL, **wishes), **options)


def test_a_model_without_a_second_window_has_no_compressor() -> None:
    with pytest.raises(SpecError, match="full attention and two layers with windows"):
        replace(MODEL, layers=("window", "attention"))


# The real scheduler, beside the specs that the release's own classes of caches make.


@pytest.mark.wheel
@pytest.mark.nightly
@pytest.mark.parametrize("release", [*OLDER, "0.33.0"])
def test_the_release_s_own_scheduler_decides_alike(release: str) -> None:
    ready(release)

    found = COMPRESSED.compare(release, 0, range(20))

    assert found.all_agree
    assert found.total("tokens cached") > 2000


@pytest.mark.wheel
@pytest.mark.nightly
def test_groups_in_another_order_are_not_the_release_s() -> None:
    ready("0.33.0")
    workload = draw_compressed(0, 0, FAMILY.release("0.28.0").rules)

    with COMPRESSED.start("0.33.0") as real:
        [found] = real.play(workload)

    assert "the engine core's groups are [('window', 64, 128)" in found["error"]


def test_a_window_block_less_is_another_decision() -> None:
    lines = [draw_compressed(0, number, NEWEST) for number in range(10)]
    wrong = replace(NEWEST, lookup=replace(NEWEST.lookup, window_one_short=True))

    assert any(play(line, NEWEST) != play(line, wrong) for line in lines)


def ready(release: str) -> None:
    """Skip a test where the release, or what it imports, is not there; see `make check`."""
    if not COMPRESSED.core_of(release).is_ready() or not PACKAGES.is_ready():
        pytest.skip(f"vllm {release} is not unpacked here")
