"""The worked rows G-1 to G-6: who is fed what in which call."""

from collections.abc import Sequence

import pytest
from cache_kit import HYB

from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamIndexError, UpstreamValueError
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.batch_generator import BatchGenerator
from cachesim.engines.mlx_lm.generate.forward import Forward
from cachesim.engines.mlx_lm.generate.shared import (
    PromptCache,
    PromptResponse,
    Sampler,
    Stopper,
    TokenResponse,
)
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.model.build import build
from cachesim.model.trace import NodeId, Traced
from cachesim.units import Token, as_tokens

END = Token(3)
REPLY = as_tokens((100, 101, 102, 3))
NEW = ("0.31.2", "0.31.3", "0.32.2")


class Bench:
    """A batch generator over the hybrid toy, and what each of its calls fed."""

    def __init__(self, release: str = "0.32.2", **options: int) -> None:
        rules = FAMILY.rules(Profile("mlx-lm", release))
        self.network = Traced(build(HYB, "ring"))
        self.fed: list[tuple[int, int]] = []
        self.model = Forward(self.network, rules.caches, on_call=self._note)
        self.generator = BatchGenerator(self.model, rules.server, MlxOptions(**options))
        self.next_token = 200

    def _note(self, rows: int, columns: int) -> None:
        self.fed.append((rows, columns))

    def insert(self, *lengths: int) -> int:
        segments = []
        for length in lengths:
            first = self.next_token
            segments.append(as_tokens(list(range(first, first + length))))
            self.next_token += length
        return self.generator.insert_segments(
            segments,
            sampler=Sampler(self.network, REPLY),
            stopper=Stopper(((END,),), len(REPLY)),
            max_tokens=10,
            cache=None,
            all_tokens=(),
        )

    def call(self) -> tuple[list[tuple[int, str, bool, bool]], list[tuple[int, int, int | None]]]:
        """Prompt responses and tokens; the size of the state that a finished row takes along."""
        self.fed.clear()
        prompts, tokens = self.generator.next()
        return [_prompt(each) for each in prompts], [self._token(each) for each in tokens]

    def _token(self, response: TokenResponse) -> tuple[int, int, int | None]:
        state = None if response.prompt_cache is None else self.absorbed(response.prompt_cache)
        return response.uid, int(response.token), state

    def absorbed(self, cache: PromptCache) -> int:
        """How many tokens a recurrent state has folded in."""
        marks = next(
            layer
            for shape, layer in zip(self.network.shapes, cache, strict=True)
            if shape.marks and shape.place == "recurrent"
        )
        assert isinstance(marks, ArraysCache)
        node: NodeId = 0 if marks[1] is None else int(marks[1][0, 0])
        return len(self.network.histories.tokens(node, 0))

    def states(self, uids: Sequence[int]) -> list[int]:
        found = self.generator.extract_cache(uids)
        return [self.absorbed(found[uid][0]) for uid in uids]


def _prompt(response: PromptResponse) -> tuple[int, str, bool, bool]:
    done, total = response.progress
    return response.uid, f"{done}/{total}", response.end_of_segment, response.end_of_prompt


@pytest.mark.parametrize("release", NEW)
def test_one_sequence_in_two_segments(release: str) -> None:
    bench = Bench(release)
    bench.insert(2, 3)

    assert ([(0, "2/5", True, False)], []) == bench.call()
    assert [(1, 2)] == bench.fed
    assert ([(0, "4/5", True, False)], []) == bench.call()
    assert [(1, 2)] == bench.fed
    assert ([(0, "5/5", True, True)], []) == bench.call()
    assert [(1, 1)] == bench.fed
    said = [bench.call()[1][0] for _ in REPLY]
    assert [(0, 100, None), (0, 101, None), (0, 102, None), (0, 3, 9)] == said
    assert ([], []) == bench.call()


@pytest.mark.parametrize(("release", "first"), [("0.31.2", 4), ("0.31.3", 6), ("0.32.2", 4)])
def test_two_sequences_and_a_third_that_comes_later(release: str, first: int) -> None:
    bench = Bench(release)
    bench.insert(2, 3)
    bench.insert(2, 5)

    assert [(0, "2/5", True, False), (1, "2/7", True, False)] == bench.call()[0]
    assert [(0, "4/5", True, False), (1, "6/7", True, False)] == bench.call()[0]
    assert [(2, 4)] == bench.fed
    assert [first, 6] == bench.states([0, 1])
    assert [(0, "5/5", True, True), (1, "7/7", True, True)] == bench.call()[0]
    assert [(2, 1)] == bench.fed
    bench.insert(3)
    prompts, tokens = bench.call()
    assert ([(2, "2/3", True, False)], [0, 1]) == (prompts, [uid for uid, _, _ in tokens])
    prompts, tokens = bench.call()
    assert ([(2, "3/3", True, True)], [0, 1]) == (prompts, [uid for uid, _, _ in tokens])
    assert [0, 1, 2] == [uid for uid, _, _ in bench.call()[1]]
    ends = bench.call()[1]
    assert [(0, 3, 9 + first - 4), (1, 3, 11), (2, 101, None)] == ends
    assert [(2, 102, None)] == bench.call()[1]
    assert [(2, 3, 7)] == bench.call()[1]


def test_steps_of_three() -> None:
    bench = Bench(prefill_step_size=3)
    bench.insert(10)
    bench.insert(2)

    assert [(0, "3/10", False, False), (1, "1/2", True, False)] == bench.call()[0]
    assert [(2, 3)] == bench.fed
    assert [(1, "2/2", True, True), (0, "6/10", False, False)] == bench.call()[0]
    prompts, tokens = bench.call()
    assert ([(0, "9/10", True, False)], [(1, 100, None)]) == (prompts, tokens)
    prompts, tokens = bench.call()
    assert ([(0, "10/10", True, True)], [(1, 101, None)]) == (prompts, tokens)
    assert [1, 0] == [uid for uid, _, _ in bench.call()[1]]
    released = [each for _ in range(4) for each in bench.call()[1] if each[2] is not None]
    assert [(1, 3, 6), (0, 3, 14)] == released


def test_a_prompt_waits_for_a_free_place_in_decoding() -> None:
    bench = Bench(prompt_concurrency=1, decode_concurrency=2)
    for _ in range(3):
        bench.insert(3)
    calls = [[uid for uid, *_ in bench.call()[0]] for _ in range(6)]

    assert [[0], [0], [1], [1], [], [2]] == calls


def test_the_state_of_a_prompt_that_was_consumed() -> None:
    bench = Bench()
    bench.insert(3)
    bench.call()
    bench.call()
    cache, tokens = bench.generator.extract_cache([0])[0]

    assert (3, 3) == (bench.absorbed(cache), len(tokens))
    bench.generator.remove([0])
    assert {} == bench.generator.extract_cache([0])
    assert ([], []) == bench.call()


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_removal_at_every_stage_leaves_the_others_alone(stage: int) -> None:
    bench = Bench()
    for _ in range(2):
        bench.insert(2, 3)
    for _ in range(stage):
        bench.call()
    bench.generator.remove([0])
    ends = [each for _ in range(9) for each in bench.call()[1] if each[2] is not None]

    assert [(1, 3, 9)] == ends


@pytest.mark.parametrize(
    ("release", "error"), [("0.31.3", UpstreamIndexError), ("0.32.2", UpstreamValueError)]
)
def test_a_sequence_without_segments_is_refused(release: str, error: type[Exception]) -> None:
    bench = Bench(release)
    with pytest.raises(error):
        bench.insert()


def test_an_empty_segment_dies_late_before_0_32_0() -> None:
    bench = Bench("0.31.3")
    bench.insert(0)
    bench.call()
    bench.call()

    with pytest.raises(UpstreamIndexError):
        bench.call()


def test_bytes_of_what_waits_and_of_what_is_at_work() -> None:
    bench = Bench()
    before = bench.generator.prompt_cache_nbytes
    bench.insert(3)
    waiting = bench.generator.prompt_cache_nbytes
    bench.call()

    assert (0, 0) == (before, waiting)
    assert 704 + 256 * 32 == bench.generator.prompt_cache_nbytes
