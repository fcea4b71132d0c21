"""A file that `check --emit` writes fails until its defect is fixed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, get_args

import numpy as np
import pytest

from cachesim.engines import FAMILIES, Profile
from cachesim.engines.base import Reply
from cachesim.engines.family import register
from cachesim.engines.llamacpp.memory.recurrent_cells import Planes
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from cachesim.engines.llamacpp.router import Router
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.engines.vllm.coordinator import Coordinator
from cachesim.engines.vllm_mlx.memory_cache import miss
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play import findings, loop, run
from cachesim.play import session as sessions
from cachesim.play.findings import Finding, play
from cachesim.play.result import Run
from cachesim.scenario.files import loads, to_toml
from cachesim.scenario.format import Kind
from cachesim.testing.search import Numbered, search, workloads
from cachesim.testing.workloads import Shape
from cachesim.typed import there_is
from cachesim.units import Count
from conformance.mutants.others import ALL
from conformance.mutants.switches import Make, Mutant, Swap, always, swap, wrapped
from tests.fake.family import FAKE
from tests.fake.server import FakeServer
from tests.fixtures import Patch


def _rows_of_zeros(original: Any, *given: Any) -> Any:
    found = original(*given)
    return found * 0 if isinstance(found, np.ndarray) else found


def _twice(original: Any, self: Router) -> None:
    original(self)
    if len(self.server.replies) > 1:
        raise ContractError("a slot is counted twice")


def _raises(error: Exception) -> Make:
    def served(original: Any, self: FakeServer, ticket: Any, request: Any) -> Reply:
        if ticket:
            raise error
        answer: Reply = original(self, ticket, request)
        return answer

    return wrapped(served)


def _with(**changes: Any) -> Make:
    """Replies after the first one have other values."""

    def served(original: Any, self: FakeServer, ticket: Any, request: Any) -> Reply:
        answer: Reply = original(self, ticket, request)
        return replace(answer, **changes) if ticket else answer

    return wrapped(served)


def _never(*_: object) -> None:
    while True:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A defect: what is swapped or a profile that has it, and one that has not."""

    kind: Kind
    profile: str = "fake@r1"
    fixed: str = ""  # the same profile, if left out
    model: str = "dense"
    swaps: tuple[Swap, ...] = ()
    shape: Shape = field(default_factory=Shape)
    arithmetic: ArithmeticName = "ring"
    seed: int = 0
    detail: str = ""


SERVE: Final = "_serve"
MLX: Final = "mlx-lm@0.32.2"
LLAMA: Final = "llama.cpp@b11549+erase-equal"

PLANTED: Final = {
    "skips": Planted(kind="wrong answer", profile="fake@r3", fixed="fake@r1"),
    "erase": Planted(
        kind="leak",
        profile="llama.cpp@b11549",
        fixed=LLAMA,
        model="recall-hybrid-delta",
        shape=Shape(incidents=True),
        arithmetic="float",
    ),
    "equal": Planted(kind="broken invariant", swaps=swap(FakeServer, SERVE, _with(equal=Count(1)))),
    "router": Planted(
        kind="broken invariant",
        profile=LLAMA,
        model="hybrid",
        swaps=swap(Router, "check_integrity", wrapped(_twice)),
    ),
    "planes": Planted(
        kind="wrong answer",
        profile=LLAMA,
        model="hybrid",
        swaps=swap(Planes, "copy_of", wrapped(_rows_of_zeros)),
    ),
    "raised": Planted(
        kind="crash",
        swaps=swap(FakeServer, SERVE, _raises(KeyError("slot"))),
        detail="KeyError: 'slot', raised by tests.fake.server",
    ),
    "aborted": Planted(
        kind="crash", swaps=swap(FakeServer, SERVE, _raises(UpstreamAbort("decode", "no room")))
    ),
    "no reply": Planted(
        kind="crash", swaps=swap(FakeServer, "reply", always(None)), detail=findings.NO_REPLY
    ),
    "endless": Planted(
        kind="crash",
        profile="vllm@0.33.0",
        swaps=swap(Coordinator, "find_longest_cache_hit", lambda _: _never),
        detail=loop.FOREVER,
    ),
    "endless check": Planted(
        kind="crash",
        profile=LLAMA,
        swaps=swap(PromptCache, "contains", lambda _: _never),
        detail=loop.FOREVER,
    ),
    "server error": Planted(
        kind="refusal",
        swaps=swap(FakeServer, SERVE, _with(error=findings.SERVER_ERROR, message="no room")),
    ),
    "miss": Planted(
        kind="lost reuse",
        profile=MLX,
        seed=1,
        swaps=swap(
            LRUPromptCache, "fetch", lambda _: lambda __, ___, tokens: miss(list(tokens), Count(0))
        ),
    ),
}


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: Patch) -> Iterator[None]:
    for module in (loop, sessions, findings):
        monkeypatch.setattr(module, "LONGEST_TURN", 0.5)
        monkeypatch.setattr(module, "PER_TOKEN", 0.0, raising=False)
    register(FAKE)
    yield
    del FAMILIES[FAKE.name]


@contextmanager
def _there(planted: Planted) -> Iterator[Profile]:
    """With the defect in place."""
    with ExitStack() as stack:
        for each in planted.swaps:
            stack.enter_context(each.on())
        yield Profile.parse(planted.profile)


def _shown(
    planted: Planted, examples: int | None = None, among: Sequence[Numbered] | None = None
) -> tuple[Finding, Run, Run]:
    """What a search finds; a run of the file that it writes with the defect, and one without."""
    with _there(planted) as broken:
        report = search(
            broken,
            planted.model,
            examples=examples,
            seed=planted.seed,
            arithmetic=planted.arithmetic,
            shape=planted.shape,
            among=among,
            only="leak" if planted.kind == "leak" else None,
        )
        example = there_is(report.counterexample)
        file = loads(to_toml(example.scenario).encode(), name="emitted")
        with_it = run(file, broken)
    return example.finding, with_it, run(file, _fixed(planted))


def _fixed(planted: Planted) -> Profile:
    return Profile.parse(planted.fixed or planted.profile)


def _failing(planted: Planted, examples: int) -> Numbered:
    """The first workload that fails with the defect alone: a release may have others, too."""
    drawn = workloads(Profile.parse(planted.profile), planted.model, shape=planted.shape)
    for number, scenario in enumerate(islice(drawn, examples)):
        with _there(planted) as broken:
            fails = play(scenario, broken).finding is not None
        if fails and play(scenario, _fixed(planted)).finding is None:
            return number, scenario
    raise ContractError(f"no workload of {examples} fails")


SLOW = [pytest.mark.thorough, pytest.mark.nightly]


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(each, id=name, marks=SLOW if each.kind == "leak" else [])
        for name, each in PLANTED.items()
    ],
)
def test_an_emitted_file_fails_until_its_defect_is_fixed(planted: Planted) -> None:
    finding, with_it, without = _shown(planted, examples=400)

    assert planted.kind == finding.kind
    assert planted.detail in finding.detail
    assert any(f": {planted.kind}: " in mismatch for mismatch in with_it.mismatches)
    assert () == without.mismatches


def test_every_kind_of_finding_is_planted() -> None:
    assert {*get_args(Kind)} == {each.kind for each in PLANTED.values()}


BY_ANSWERS: Final = {each.name: each for each in ALL if each.caught_by == "answers"}


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.parametrize("mutant", BY_ANSWERS.values(), ids=BY_ANSWERS)
def test_the_file_of_a_mutant_fails_until_it_is_taken_back(mutant: Mutant) -> None:
    planted = Planted(
        kind="wrong answer",
        profile=mutant.profile,
        fixed=mutant.cured,
        model=mutant.model,
        swaps=mutant.swaps,
        shape=Shape(**mutant.shape),
    )
    _, with_it, without = _shown(planted, among=[_failing(planted, mutant.patience)])

    assert not with_it.as_expected
    assert () == without.mismatches
