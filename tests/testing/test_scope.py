"""Small scopes, whole: what they hold, what is stated of them, what they find."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from cachesim.engines import Profile
from cachesim.engines.family import FAMILIES, family_of
from cachesim.engines.search import ACTS, Scope, Search
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS
from cachesim.prove.hunt import proof
from cachesim.prove.hunt.proof import ProofResult
from cachesim.prove.mlx_lm.scenarios import PROVER
from cachesim.scenario.format import Step
from cachesim.scenario.labels import CONFIRMED, SOURCE
from cachesim.testing.scope import WholeScope, scopes_of
from cachesim.testing.search import Counterexample, Report
from cachesim.testing.workloads import FIRST_WORD
from tests.fixtures import Capture, Patch, output

KNOWN = "llama.cpp@b11549"
MENDED = "llama.cpp@b11549+erase-equal"

# Workloads of two requests to the newest releases, on hybrid (transformers: dense).
COUNTS = {
    "llama.cpp": 153,
    "ik_llama.cpp": 83,
    "llama-cpp-python": 44,
    "koboldcpp": 44,
    "ollama-runner": 44,
    "lm-studio": 27,
    "ollama": 44,
    "vllm-mlx": 14,
    "rapid-mlx": 27,
    "mlx-lm": 54,
    "vllm": 216,
    "sglang": 243,
    "marconi": 27,
    "transformers": 54,
}


def whole(profile: str, model: str = "hybrid", requests: int = 2, servers: int = 9) -> WholeScope:
    scope = WholeScope(profile=Profile.parse(profile), model=model, requests=requests)
    scope.servers = scope.servers[:servers]
    return scope


def newest(engine: str) -> str:
    return f"{engine}@{family_of(engine).names()[-1]}"


def model_of(engine: str) -> str:
    """vllm-mlx 0.5.0 keeps no state that cannot be cut, so that a hybrid reuses nothing there."""
    return "dense" if engine in {"transformers", "vllm-mlx"} else "hybrid"


def renamed(steps: tuple[Step, ...]) -> list[Any]:
    """A workload's steps, its words numbered in order of occurrence."""
    names: dict[int, int] = {}
    return [
        (
            step.do,
            step.of,
            step.turns,
            step.with_previous,
            [names.setdefault(word, len(names)) for word in (*step.ids, -1, *words(step))],
        )
        for step in steps
    ]


def words(step: Step) -> Iterator[int]:
    yield from map(int, step.reply or ())


def server_of_two() -> WholeScope:
    scope = whole(MENDED)
    scope.servers = (Scope(lengths=(2,)),)
    return scope


def test_two_requests_of_two_words_meet_in_five_ways() -> None:
    a, b, c, d, e = range(FIRST_WORD, FIRST_WORD + 5)

    seen = [scenario.step for _, scenario in server_of_two().workloads()]

    assert {(a, b)} == {first.ids for first, _ in seen}
    assert {(c,)} == {first.reply for first, _ in seen}
    assert [(d, e), (a, b), (a, b, c), (a, b, c, d), (a, b, d)] == [then.ids for _, then in seen]


@pytest.mark.parametrize("engine", COUNTS)
def test_no_workload_occurs_twice(engine: str) -> None:
    scope = whole(newest(engine), model_of(engine))
    scenarios = [scenario for _, scenario in scope.workloads()]
    different = {
        json.dumps([dict(scenario.engine.options), renamed(scenario.step)], default=str)
        for scenario in scenarios
    }

    assert COUNTS[engine] == len(scenarios) == len(different)


def test_every_engine_has_a_scope() -> None:
    longer = {"omlx"}  # blocks of 2,048 tokens, more than the prompts of a scope have

    assert FAMILIES.keys() - longer == COUNTS.keys()
    with pytest.raises(InputError, match="omlx"):
        whole(newest("omlx"))


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.parametrize("engine", COUNTS)
def test_every_release_of_an_engine_has_a_scope_that_reuses(engine: str) -> None:
    family, requests = family_of(engine), 3 if engine == "transformers" else 2
    for release in family.names():  # transformers registers the last batch with the next one
        scope = whole(f"{engine}@{release}", model_of(engine), requests)
        found = scope.survey("ring", lambda _: True)

        assert scope.is_whole(found.report)
        assert found.report.cached_tokens > 0, release


@pytest.mark.thorough
def test_three_requests_to_one_slot_reach_the_wrong_answer() -> None:
    scope = whole(KNOWN, requests=3, servers=1)
    found = scope.survey("ring", lambda _: True)

    (cause,) = found.counts
    assert "erase-equal" == cause.cure
    assert "2 of 350 workloads failed (wrong answer 2): the whole scope of up to 3 requests" == (
        scope.statement(found.report)
    )


@pytest.mark.thorough
def test_a_search_that_ends_at_its_finding_is_not_whole() -> None:
    scope = whole(KNOWN, requests=3, servers=1)
    report = scope.search("ring", lambda _: True)

    assert report.counterexample is not None
    assert 3 == len(report.counterexample.scenario.step)
    assert "the search ended at its finding" in scope.statement(report)


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.parametrize("model", PRESETS)
def test_the_mended_erasure_leaves_no_way(model: str) -> None:
    scope = whole(MENDED, model, requests=3, servers=1)
    report = scope.search("ring", lambda _: True)

    assert "no wrong answer in 350 workloads: the whole scope of up to 3 requests" == (
        scope.statement(report)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("profile", [MENDED, "vllm@0.33.0"])
def test_a_whole_scope_is_stated_the_same_by_one_process_and_by_two(profile: str) -> None:
    alone, together = whole(profile), whole(profile)
    one = alone.search("ring", lambda _: True)
    with ThreadPoolExecutor(2) as pool:
        two = together.search("ring", lambda _: True, pool, 2)

    assert one == two
    assert alone.statement(one) == together.statement(two)
    assert alone.is_whole(one)


@pytest.mark.thorough
@pytest.mark.nightly
def test_two_processes_survey_what_one_does() -> None:
    alone, together = (whole(KNOWN, requests=3, servers=1) for _ in range(2))
    one = alone.survey("ring", lambda _: True)
    with ThreadPoolExecutor(2) as pool:
        two = together.survey("ring", lambda _: True, pool, 2)

    assert one == two
    assert alone.statement(one.report) == together.statement(two.report)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_scope_the_time_cuts_short_is_not_called_whole(workers: int) -> None:
    scope = whole(MENDED)

    def going(report: Report) -> bool:
        return report.workloads < 50

    with ThreadPoolExecutor(2) as pool:
        report = scope.search("ring", going, pool if workers > 1 else None, 2)

    assert not scope.is_whole(report)
    assert (
        "no wrong answer in 50 workloads: not the whole scope of up to 2 requests, the time was "
        "over" == scope.statement(report)
    )


def said(capsys: Capture, *arguments: str) -> str:
    out = output(capsys, ["check", MENDED, "--scope", "2", *arguments])
    if "json" in arguments:
        return out
    return re.sub(r", [\d.,]+ workloads/s|[\d.]+ s$", "", " ".join(out.split()))


@pytest.mark.thorough
def test_the_command_states_what_it_played(capsys: Capture) -> None:
    one, two = (said(capsys, "--jobs", jobs) for jobs in "12")

    assert one == two
    assert "no wrong answer in 153 workloads: the whole scope of up to 2 requests; " in one
    (search,) = json.loads(said(capsys, "--jobs", "1", "--format", "json"))["searches"]
    assert (153, 306, True, []) == (
        search["workloads"],
        search["requests"],
        search["scope"]["whole"],
        search["findings"],
    )
    assert [1, 5, 9] == search["scope"]["servers"][0]["lengths"]


def test_a_flag_of_the_user_goes_before_the_scope_s_own(capsys: Capture) -> None:
    out = said(capsys, "--jobs", "1", "--set", "ctx_checkpoints=0")

    assert 3 == out.count("ctx_checkpoints = 0")
    assert 0 == out.count("ctx_checkpoints = 2")


@pytest.mark.thorough
@pytest.mark.parametrize("fits", [True, False])
def test_the_smallest_workload_of_each_cause_is_played_on_the_real_engine(
    fits: bool, monkeypatch: Patch, capsys: Capture
) -> None:
    def prove(found: Counterexample, _: Profile) -> ProofResult:
        return ProofResult(confirmed=found.finding.kind == "crash", seen=f"{found.number}")

    prover = replace(PROVER, prove=prove, fits=lambda _: fits, ready=lambda _: None)
    monkeypatch.setattr(proof, "real_prover", {"mlx-lm": prover}.get)
    command = ("check", "mlx-lm@0.31.3", "--scope", "2", "--prove", "--jobs", "1")

    (search,) = json.loads(output(capsys, [*command, "--format", "json"], 1))["searches"]
    labels = {finding["kind"]: finding["evidence"] for finding in search["findings"]}
    assert {"crash": CONFIRMED if fits else SOURCE, "wrong answer": SOURCE} == labels
    for finding in search["findings"]:
        assert finding["proof"] == (
            str(finding["workload"]) if fits else "cannot be run on the real package"
        )


@pytest.mark.wheel
def test_the_real_package_ends_and_answers_wrongly_as_its_scope_does(capsys: Capture) -> None:
    out = output(capsys, ["check", "mlx-lm@0.31.3", "--scope", "2", "--prove", "--jobs", "1"], 1)
    assert "12 of 54 workloads failed (crash 4, wrong answer 8)" in " ".join(out.split())
    assert "on the real package: r0: 0 cached, WRONG" in out
    assert 2 == out.count(f"evidence: {CONFIRMED}")


def test_an_engine_of_others_states_its_own(monkeypatch: Patch) -> None:
    own = (Scope(lengths=(1, 2), acts=("new", "again")),)
    monkeypatch.setitem(
        FAMILIES, "marconi", replace(family_of("marconi"), search=Search(scopes=own))
    )
    scope = whole("marconi@paper")

    # Two first prompts; then one of two new ones, or the first again.
    assert 6 == scope.count() == sum(1 for _ in scope.workloads())
    assert own[0].lengths == scope.servers[0].lengths


@pytest.mark.parametrize(
    ("scopes", "problem"),
    [
        ((), "its Search states none"),
        ((Scope(lengths=(1,), flags={"blocks": 1}),), "has an unknown flag 'blocks'"),
        ((Scope(lengths=(1,), flags={"policy": "best"}),), "'policy'"),
    ],
)
def test_a_family_without_a_usable_scope_is_told(
    scopes: tuple[Scope, ...], problem: str, monkeypatch: Patch
) -> None:
    monkeypatch.setitem(
        FAMILIES, "marconi", replace(family_of("marconi"), search=Search(scopes=scopes))
    )

    with pytest.raises(InputError, match=problem):
        scopes_of(Profile.parse("marconi@paper"), "hybrid", {})


def test_more_tokens_than_there_are_words_are_refused() -> None:
    scope = whole(MENDED)
    scope.servers = (Scope(lengths=(300,), acts=ACTS),)

    with pytest.raises(InputError, match="fewer requests"):
        list(islice(scope.workloads(), 9))
