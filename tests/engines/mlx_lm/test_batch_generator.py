"""The batch generator: removal at every stage, and segments that it refuses."""

from collections.abc import Sequence

import pytest
from cache_kit import HYB, system, tool, user

from cachesim.engines.base import Message
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
from cachesim.engines.mlx_lm.server.request import Checkpoint, prompt_checkpoint
from cachesim.engines.mlx_lm.server.word_tokenizer import WordTokenizer
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.trace import NodeId, Traced
from cachesim.units import Token, as_tokens
from conformance.upstream_generation import HEAD_SIZE, ToyModel, generate_step

END = Token(3)
REPLY = as_tokens((100, 101, 102, 3))


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
        return [_prompt(prompt) for prompt in prompts], [self._token(token) for token in tokens]

    def _token(self, response: TokenResponse) -> tuple[int, int, int | None]:
        state = None if response.prompt_cache is None else self.absorbed(response.prompt_cache)
        return response.uid, int(response.token), state

    def absorbed(self, cache: PromptCache) -> int:
        """The number of tokens that a recurrent state has folded in."""
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


# Positions, counted from the end of a prompt, at which #911 and #1006 keep a state.

PLAIN, THINKS = WordTokenizer("chatml"), WordTokenizer("think")
S = system()


def checkpoint(
    release: str, tokenizer: WordTokenizer, *messages: Message, trimmable: bool = False
) -> Checkpoint:
    base, _, patch = release.partition("+")
    rules = FAMILY.rules(Profile.parse(f"mlx-lm@{base}+{patch}".rstrip("+"))).server
    prompt = tokenizer.apply_chat_template(messages)
    return prompt_checkpoint(rules, tokenizer, messages, prompt, trimmable=trimmable)


def test_where_911_keeps_a_state() -> None:
    last_is_tool = checkpoint("0.31.1", PLAIN, S, user(5, 20), tool(3, 30))

    assert Checkpoint(store=True, position=-1) == checkpoint("0.31.1", PLAIN, S, user(5, 20))
    assert Checkpoint(store=True, position=-3) == checkpoint("0.31.1", THINKS, S, user(5, 20))
    assert Checkpoint(store=False, position=-1) == last_is_tool


def test_where_1006_keeps_a_state() -> None:
    release = "0.31.1-main+1006"
    of_trimmable = checkpoint(release, PLAIN, S, user(5, 20), trimmable=True)

    assert Checkpoint(store=True, position=-10) == checkpoint(release, PLAIN, S, user(5, 20))
    assert Checkpoint(store=True, position=-1) == checkpoint(release, PLAIN, user(5, 20))
    assert Checkpoint(store=True, position=-1) == of_trimmable


# The stand-in for `mlx_lm.generate` on which upstream's own tests run.

PROMPT = list(range(1, 9))


@pytest.mark.parametrize("release", ["0.30.7", "0.32.2"])
def test_a_cache_passed_on_continues_the_reply_of_a_run_without_one(release: str) -> None:
    rules = FAMILY.release(release).rules
    model = ToyModel(tiny("dense", vocabulary=512, head_size=HEAD_SIZE), rules)
    expected = [token for token, _ in generate_step(PROMPT, model, max_tokens=4)]
    cache = model.caches()
    for _ in generate_step(PROMPT, model, max_tokens=2, prompt_cache=cache):
        pass  # the last token returned is in the cache too: upstream computes one ahead
    rest = [
        token for token, _ in generate_step(expected[2:3], model, max_tokens=1, prompt_cache=cache)
    ]
    assert [expected[3]] == rest
