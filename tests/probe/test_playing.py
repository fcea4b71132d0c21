"""A suspicious workload from a fresh start: after earlier requests, and with clients that leave."""

from dataclasses import replace

import pytest

from cachesim.probe import loop
from cachesim.probe.answers import Answer, Query
from cachesim.probe.command import Settings, run
from cachesim.probe.connection import Limits, Meter
from cachesim.probe.dialects import _messages
from cachesim.probe.judging import Judge, Noise, plays_for
from cachesim.probe.outcome import Finding, Outcome, Plan
from cachesim.probe.playing import after, one_at_a_time, query_of, without_repeats
from cachesim.probe.result import Result
from cachesim.probe.target import PORT, ServerProcess, Target
from cachesim.scenario import loads
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.testing.survey import Cause
from tests.fixtures import Patch
from tests.probe.fakes import Fake, Tokens, fake, stale
from tests.probe.fakes import Model as FakeModel

LEAVING = (
    Step(name="a", prompt=(300, 301), reply=(302,)),
    Step(name="gone", do="cancel", of="a", turns=2),
    Step(name="b", prompt=(300, 303), reply=(304,)),
)
WORKLOAD = Scenario(
    format=FORMAT,
    name="leaving",
    model=Model(preset="dense"),
    engine=Server(name="llama.cpp", profiles=("b11549",)),
    step=LEAVING,
)


def test_a_client_that_leaves_does_so_from_a_fresh_start_too() -> None:
    steps = after([], WORKLOAD, ()).step
    assert ["complete", "cancel", "complete"] == [step.do for step in steps]
    assert [(300, 301), (), (300, 303)] == [step.ids for step in steps]


def test_a_workload_after_others_is_a_scenario_that_can_be_read() -> None:
    whole = after([[Query(prompt=(1, 2), reply=(3,), leaves=0.1)]], WORKLOAD, (1, 2, 3))
    assert whole == loads(to_toml(whole).encode(), name=whole.name)


def test_requests_that_were_sent_at_once_are_so_in_the_report() -> None:
    steps = [
        Step(name=n, prompt=(300, 301), reply=(302, 303), with_previous=n == "b") for n in "abc"
    ]
    rows = [{302: -0.1, 303: -3.0}, {303: -0.2, 302: -2.0}]
    answer = Answer(tokens=(302, 303), rows=tuple(rows))
    finding = Finding(
        kind="answer",
        sentence="off",
        requests=3,
        seconds=1.0,
        scenario=replace(WORKLOAD, step=tuple(steps)),
        queries=[Query(prompt=(300, 301), reply=(302, 303))] * 3,
        answers=[answer] * 3,
        wrong=0,
        cold=replace(answer, rows=(rows[0], {303: -3.2, 302: -0.2})),
    )
    with fake("llama", "llama.cpp@b11549") as server:
        meter = Meter(Limits())
        target = Target(meter, server.url)
        outcome = Outcome(findings=[finding])
        result = Result.of(target, outcome, Judge(Noise(), alpha=0.001), 1000)
        lines = list(result._commands(finding, target))
        target.close()
    curls = [at for at, line in enumerate(lines) if line.startswith("curl ")]
    assert [True, False, False] == [lines[at].endswith(" &") for at in curls]
    assert ["wait", "# request 1 again, cold:"] == lines[curls[1] + 1 : curls[2]]
    assert "The likeliest tokens at place 2 of its reply:" in lines
    assert "| `303` | -0.200 | `302` | -0.200 |" in lines


def test_requests_before_the_workload_are_steps_of_it() -> None:
    cold = Query(prompt=("x", "y"), reply=("z",), cache_prompt=False)
    pair = [Query(prompt=("y",), reply=("x",), leaves=0.008), Query(prompt=("z",), reply=("x",))]
    steps = after([[cold], pair], WORKLOAD, ("x", "y", "z")).step

    assert [False, True, True, True, True, True, True] == [step.cache_prompt for step in steps]
    assert [False, False, False, True] == [step.with_previous for step in steps[:4]]
    assert 2 == steps[2].turns
    assert steps[0].ids[1:] == steps[1].ids
    assert LEAVING[2].ids == steps[-1].ids


def test_messages_of_a_chat_end_at_the_same_tokens_in_other_words() -> None:
    step = Step(prompt=(265, 266, 276, 270, 288, 300), reply=(270,))
    one, other = (query_of(step, {n: f"{word}{n}" for n in range(200, 400)}) for word in "ab")
    assert one.messages == other.messages
    assert (3, 4, 5) == one.messages
    roles = [(message["role"], message["content"]) for message in _messages(one)]
    chat = [("system", "a265 a266 a276"), ("user", "a270"), ("assistant", "a288"), ("user", "a300")]
    assert chat == roles


def test_one_at_a_time_leaves_cancels_and_company_out() -> None:
    beside = replace(LEAVING[2], with_previous=True, slot=3)
    calm = one_at_a_time(replace(WORKLOAD, step=(*LEAVING, beside)), 1)
    assert [(300, 301), (300, 303), (300, 303)] == [step.ids for step in calm.step]
    assert {(1, False)} == {(step.slot, step.with_previous) for step in calm.step}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_the_workload_from_a_fresh_start_needs_no_company_if_one_slot_shows_it(
    seed: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(loop, "SAMPLES", 12)
    monkeypatch.setattr(loop, "TRIALS", 0)
    monkeypatch.setattr(loop.Fingerprint, "of", lambda *_: loop.Fingerprint([]))
    with fake("llama", "llama.cpp@b11549", context=stale, parallel=4) as server:
        settings = Settings(url=server.url, requests=3000, longest=60, may_erase=True, seed=seed)
        finding = run(settings).result.outcome.finding

    assert finding is not None
    assert finding.scenario is not None
    assert {("complete", 0, False)} == {
        (step.do, step.slot, step.with_previous) for step in finding.scenario.step
    }


def test_repeats_prefixes_and_prompts_of_one_token_are_left_out() -> None:
    one = Step(name="one", prompt=(300,), reply=(301,))
    again = replace(LEAVING[0], name="again", with_previous=True)
    cut = replace(LEAVING[2], prompt=(300, 301, 302))
    kept = without_repeats((one, *LEAVING, again, cut, replace(LEAVING[2], prompt=(1, 2))))
    assert [(300, 301), (300, 303), (1, 2)] == [step.ids for step in kept]
    assert () == without_repeats((one,))


@pytest.mark.parametrize(("rate", "plays"), [(1.0, 1), (0.96, 1), (0.5, 5), (0.2, 14)])
def test_a_fault_that_is_seldom_shown_is_played_more_often(rate: float, plays: int) -> None:
    assert plays == plays_for(rate)
    assert rate >= 0.95 or 0.95 <= 1 - (1 - rate) ** plays


@pytest.mark.parametrize(("known", "served"), [(False, True), (True, True), (True, False)])
def test_a_started_server_is_restarted_between_workloads_once_a_cause_is_known(
    monkeypatch: Patch, *, known: bool, served: bool
) -> None:
    """Not erased, as no simulated server has that in its history."""
    done: list[str] = []
    monkeypatch.setattr(Target, "restart", lambda _: done.append("restart"))
    monkeypatch.setattr(Target, "erase", lambda _: done.append("erase"))
    monkeypatch.setattr(ServerProcess, "served", served)
    meter = Meter(Limits())
    with fake("llama", "llama.cpp@b11549") as server:
        target = Target(meter, server.url)
        probe = loop.Probe(target, meter, Plan(), lambda _: None)
        target.process = ServerProcess(f"false {PORT}")
        if known:
            causes = frozenset({Cause("wrong answer", ("stale",))})
            found = Finding(kind="answer", sentence="", requests=1, seconds=1, causes=causes)
            probe.outcome.findings.append(found)
        for _ in range(20):
            probe._empty()
        target.close()
    assert (known and served, not known) == ("restart" in done, "erase" in done)


@pytest.mark.thorough
def test_what_an_earlier_request_left_is_found_from_a_fresh_start(monkeypatch: Patch) -> None:
    """A long cold prompt spoils all answers from cache, until the server is erased."""
    monkeypatch.setattr(loop, "SAMPLES", 12)
    monkeypatch.setattr(loop.Fingerprint, "of", lambda *_: loop.Fingerprint([]))
    spoiled: dict[Fake, int] = {}

    def spoils(server: Fake, _: int) -> str:
        body = server.bodies[-1]
        if not body["cache_prompt"] and len(body["prompt"]) > 30:
            spoiled[server] = server.erased
        server.model.previous = (3,) if spoiled.get(server) == server.erased else ()
        return ""

    def context(prompt: Tokens, _: int, model: FakeModel) -> Tokens:
        return (*model.previous, *prompt[1:]) if model.previous == (3,) else prompt

    with fake("llama", "llama.cpp@b11549", context=context, fault=spoils) as server:
        settings = Settings(url=server.url, requests=3000, longest=60, may_erase=True)
        finding = run(settings).result.outcome.finding

    assert finding is not None
    assert finding.scenario is not None
    assert not all(step.cache_prompt for step in finding.scenario.step)
