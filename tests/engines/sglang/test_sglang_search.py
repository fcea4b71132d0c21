"""`cachesim check` finds the reported defects that move states wrongly, with nothing but a profile.

Each is put back over a release, found among the first 200 workloads, and made small.
"""

from functools import partial
from importlib import import_module
from itertools import islice

import pytest

from cachesim.cli.check import EXAMPLES, of_two, shape_for
from cachesim.engines import Profile
from cachesim.play.findings import play
from cachesim.scenario.format import Kind, Model, Scenario, Server, Step
from cachesim.testing.search import (
    Counterexample,
    search,
    shrink,
    trials,
)
from cachesim.testing.workloads import Seeded, corners, draw_corner

MOST_REQUESTS = 4

QUIET = ("dcp_size=1", "max_total_tokens=20000", "speculative_algorithm=none")

KNOWN_ENDS = (
    "the session already has a slot",
    "Can not alloc mamba cache",
    "a request waits for more memory than there is beside open sessions",
)
"""How 0.5.23 ends some drawn workloads: its own scheduler ends there, too."""

TRIALS = 120
"""Simplifications that are enough for that; a check tries more, for shorter prompts."""


@pytest.fixture(autouse=True)
def _few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    room = import_module("cachesim.testing.search")  # the package has a function of that name
    monkeypatch.setattr(room, "shrink", partial(shrink, trials=TRIALS))


def found_by_default(
    profile: str, model: str, seed: int = 0, only: Kind = "wrong answer"
) -> Counterexample:
    """The finding of a kind by `cachesim check PROFILE --model MODEL`, made as small as few trials
    make it. Crashes of the releases themselves would end many of these searches first.
    """
    report = search(
        Profile.parse(profile), model, examples=EXAMPLES, seed=seed, shape=shape_for(()), only=only
    )
    assert report.counterexample is not None, f"nothing in {report.workloads} workloads"
    return report.counterexample


@pytest.mark.sampled(14)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("release", "patch", "model", "seed"),
    [
        ("0.5.9", "no-37836", "hybrid", 5),
        ("0.5.23", "no-37836", "hybrid", 5),
        ("0.5.9", "no-29368", "hybrid", 5),
        ("0.5.23", "no-29368", "hybrid", 5),
        ("0.5.9", "24221", "hybrid", 5),
        ("0.5.23", "24221", "hybrid", 5),
        ("0.5.9", "31486", "swa", 5),
        ("0.5.23", "31486", "swa", 5),
        ("0.5.9", "39830", "dense", 6),
        ("0.5.23", "39830", "dense", 5),
        ("0.5.23", "39830", "swa", 6),
        ("0.5.23", "39830", "hybrid", 5),
        ("0.5.23", "24380", "hybrid", 5),
        ("0.5.9", "24380", "hybrid", 5),  # the quickest stands last, which make check plays
    ],
)
def test_a_wrongly_moved_state_is_found_and_made_small(
    release: str, patch: str, model: str, seed: int
) -> None:
    # With other seeds defects of the releases themselves come first.
    found = found_by_default(f"sglang@{release}+{patch}", model, seed=seed)
    requests = [step for step in found.scenario.step if step.do == "complete"]
    assert "wrong answer" == found.finding.kind
    assert len(requests) <= MOST_REQUESTS
    assert None is play(found.scenario, Profile.parse(f"sglang@{release}")).finding


@pytest.mark.thorough
@pytest.mark.nightly
def test_a_page_beyond_the_window_is_found_where_no_patch_is_laid() -> None:
    found = found_by_default("sglang@0.5.9", "swa", seed=3)
    assert "wrong answer" == found.finding.kind
    assert len(found.scenario.step) <= MOST_REQUESTS
    assert found.scenario.engine.options["page_size"] > (found.scenario.model.window or 0)


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.parametrize("patch", ["no-34870", "27586"])
def test_a_pool_whose_books_do_not_balance_is_found(patch: str) -> None:
    found = found_by_default(f"sglang@0.5.23+{patch}", "swa", 1, only="broken invariant")
    assert "broken invariant" == found.finding.kind
    assert len(found.scenario.step) <= MOST_REQUESTS
    assert None is play(found.scenario, Profile.parse("sglang@0.5.23")).finding


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("release", "model", "settings"),
    [("0.5.23", "dense", QUIET), ("0.5.23", "hybrid", QUIET), ("0.5.9", "hybrid", ())],
)
def test_nothing_is_found_beside_the_known_defects(
    release: str, model: str, settings: tuple[str, ...]
) -> None:
    """Ranks make pages longer, and a drawn pool too small: `test_a_page_more_than_the_pool`. With
    EAGLE a streaming session counts a token too many: `sglang-streaming-last-token`.
    """
    tried = trials(Profile.parse(f"sglang@{release}"), model, shape=shape_for(settings))

    findings = [finding for _, _, trial in islice(tried, EXAMPLES) for finding in trial.findings]

    assert [] == [finding for finding in findings if not finding.detail.endswith(KNOWN_ENDS)]


def test_a_page_more_than_the_pool_is_never_admitted() -> None:
    """A page is reserved beside a request; the scheduler of 0.5.23 leaves such a request, too."""
    step = Step(prompt=tuple(range(300, 424)), predict=4, reply=(363, 354, 331, 364))
    ends = []
    for tokens in (160, 192):  # 124 + 4 + 32 have to be less
        flags = {"max_total_tokens": tokens, "page_size": 32}
        engine = Server(name="sglang", profiles=("0.5.23",), options=flags)
        scenario = Scenario(name="page", engine=engine, model=Model(preset="dense"), step=(step,))
        ends.append(play(scenario, Profile.parse("sglang@0.5.23")).finding)
    assert ends[0] is not None
    assert "a request waits for more memory than there is" in ends[0].detail
    assert ends[1] is None


@pytest.mark.thorough
@pytest.mark.nightly
def test_the_orphan_of_write_back_ends_the_process_and_is_not_called_a_lost_slot() -> None:
    """`sglang-write-back-deletes-the-upper-node`: the assertion, not the
    pool that its function left half freed.
    """
    back = ("hicache_write_policy=write_back", "hicache_ratio=1.0", "max_total_tokens=160")
    shape = of_two(shape_for(("enable_hierarchical_cache=true", *back)))
    found = search(
        Profile.parse("sglang@0.5.9"), "dense", examples=EXAMPLES, shape=shape
    ).counterexample
    assert found is not None
    assert "crash" == found.finding.kind
    assert "parent does not have child key" in found.finding.detail


def test_a_corner_is_for_models_and_releases_that_have_its_flags() -> None:
    def flags(release: str, model: str) -> set[str]:
        found = corners(Profile.parse(f"sglang@{release}"), model)
        return {name for each in found for name in each.flags}

    assert "mamba_radix_cache_strategy" in flags("0.5.23", "hybrid")
    assert "mamba_scheduler_strategy" not in flags("0.5.23", "hybrid")
    assert "mamba_radix_cache_strategy" not in flags("0.5.23", "dense")
    assert "enable_hierarchical_cache" not in flags("0.5.9", "hybrid")


def test_an_engine_without_corners_draws_nothing_for_them() -> None:
    asked, fresh = Seeded(0), Seeded(0)
    assert {} == draw_corner(asked, Profile.parse("marconi@artifact"), "hybrid").flags
    assert fresh.integer(0, 1 << 30) == asked.integer(0, 1 << 30)
