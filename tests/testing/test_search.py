"""The search finds known defects without being told where to look, and makes them small."""

from dataclasses import replace
from itertools import islice
from typing import Any, Final

import pytest

from cachesim.engines import FAMILIES, Profile
from cachesim.engines.base import Reply, Ticket
from cachesim.engines.facts import events_of
from cachesim.engines.family import Family, search_of
from cachesim.engines.ik_llama.slot import Slot
from cachesim.engines.llamacpp import prompt_cache, server_batch
from cachesim.engines.llamacpp.memory.recurrent_cells import Planes
from cachesim.engines.llamacpp.server import LlamaCpp
from cachesim.engines.mlx_lm.store.lru_prompt_cache import LRUPromptCache
from cachesim.engines.sglang.server import Sglang
from cachesim.engines.vllm.coordinator import Coordinator
from cachesim.engines.vllm.server import Vllm
from cachesim.engines.vllm_mlx.memory_cache import miss
from cachesim.errors import SpecError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import PRESETS
from cachesim.model.spec import ModelSpec
from cachesim.play import findings, loop, run, run_scenario
from cachesim.play import session as sessions
from cachesim.play.findings import ANSWERED, EXERCISED, NO_REPLY, Finding, Trial, play
from cachesim.play.session import Session
from cachesim.scenario import loads
from cachesim.scenario.checks import check
from cachesim.scenario.files import load, to_toml
from cachesim.scenario.format import Expect, Model, Scenario, Server, Step
from cachesim.testing.search import (
    Counterexample,
    compare,
    expected_of,
    search,
    shrink,
    simpler,
    trial_of,
    workloads,
)
from cachesim.testing.story import story
from cachesim.testing.workloads import WHOLE, Shape, is_thin, weighs
from cachesim.traces.replay import Cell
from cachesim.traces.replay import play as replay
from cachesim.traces.source import Source
from cachesim.units import Array, Count, as_tokens
from tests.fixtures import Patch


@pytest.fixture(name="found", scope="module")
def _found() -> Counterexample:
    """Findings of a search of the October release on a hybrid model."""
    found = search(
        Profile.parse("llama.cpp@b11549"), "hybrid", first=170, examples=50
    ).counterexample
    assert found is not None
    return found


def test_fields_and_flags_of_a_finding_read_as_in_its_file() -> None:
    adapters = {"lora": [{"id": 0, "scale": 0.5}]}
    scenario = Scenario(
        name="one",
        model=Model(preset="dense"),
        engine=Server(name="llama.cpp", options={"cache_prompt": False}),
        step=(Step(name="A", prompt=(1, 2, 3), options=adapters),),
    )
    finding = Finding(kind="crash", step=0, detail="ended")
    one = Counterexample(number=1, scenario=scenario, finding=finding, arithmetic="ring")

    told = "\n".join(story(one, Profile.parse("llama.cpp@b11549")))

    assert "cache_prompt = false" in told
    assert "with lora = [{ id = 0, scale = 0.5 }]" in told


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Model(preset="swa"), ""),
        (Model(preset="swa", window=8), ", with windows of 8 tokens"),
        (
            Model(layers=("window", "attention"), window=2, chunked=True),
            ", with layers window, attention and chunks of 2 tokens",
        ),
        (Model(preset="swa", family="gemma3n"), ", with model class gemma3n"),
    ],
)
def test_a_finding_names_what_its_model_has_beside_the_preset(model: Model, words: str) -> None:
    scenario = Scenario(name="one", model=model, step=(Step(name="A", prompt=(1, 2, 3)),))
    finding = Finding(kind="crash", step=0, detail="ended")
    one = Counterexample(number=1, scenario=scenario, finding=finding, arithmetic="ring")

    assert (
        f"    a server of mlx-lm@0.32.2, all flags default{words}"
        == story(one, Profile.parse("mlx-lm@0.32.2"))[1]
    )


def test_the_wrong_answer_of_a_current_release_is_found_and_made_small(
    found: Counterexample,
) -> None:
    assert "wrong answer" == found.finding.kind
    assert len(found.scenario.step) <= 4
    assert sum(len(step.ids) for step in found.scenario.step) <= 24


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "model"), [("llama.cpp@b9538", "swa"), ("ik_llama.cpp@d2da6da05+1689", "hybrid-delta")]
)
def test_other_wrong_answers_are_found_too(text: str, model: str) -> None:
    report = search(Profile.parse(text), model, examples=150)

    assert report.counterexample is not None
    assert len(report.counterexample.scenario.step) <= 4


def test_what_was_found_is_played_again_from_its_file(found: Counterexample) -> None:
    again = loads(to_toml(found.scenario).encode(), name="found.toml")
    released = Profile.parse("llama.cpp@b11549")
    mended = Profile.parse("llama.cpp@b11549+erase-equal")

    assert found.scenario == again
    assert not run(again, released, arithmetic="ring").as_expected
    assert run(again, mended, arithmetic="ring").as_expected


def test_a_dead_generation_thread_is_one_crash_however_many_requests_wait() -> None:
    exact = load("scenarios/mlx-lm/mlx-lm-1215-exact-hit.toml")

    trial = play(exact, Profile.parse("mlx-lm@0.31.3"), stop_early=False)

    assert ["crash"] == [finding.kind for finding in trial.findings]
    assert trial.findings[0].detail.startswith("worker died: IndexError")


def test_a_sound_profile_passes() -> None:
    report = search(Profile.parse("llama.cpp@b11549"), "dense", examples=40)

    assert report.counterexample is None
    assert report.exercised["reuse"] > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("llama.cpp@b9093", "hybrid-mtp"),
        ("llama.cpp@b11549", "hybrid-mtp"),
        ("ik_llama.cpp@8337e4cd3", "hybrid-mtp"),
        ("mlx-lm@0.30.7", "hybrid-mtp"),
        ("mlx-lm@0.31.1-main+1006", "swa"),
        ("mlx-lm@0.32.2", "hybrid"),
    ],
)
def test_no_server_is_asked_for_what_it_does_not_have(text: str, model: str) -> None:
    drawn = workloads(Profile.parse(text), model, seed=1)

    for scenario in (next(drawn) for _ in range(25)):
        play(scenario, Profile.parse(text))


def takes(family: Family[Any, Any], spec: ModelSpec) -> bool:
    """True if the server has rules for a model's layers."""
    try:
        family.check(spec)
    except SpecError:
        return False
    return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_one_layer_of_each_kind_decides_and_shows_what_all_of_them_do(
    family: Family[Any, Any],
) -> None:
    profile = Profile.parse(f"{family.name}@{family.names()[-1]}")
    models = [name for name, spec in PRESETS.items() if not spec.mtp_depth and takes(family, spec)]

    assert models
    for model in models:
        for scenario in islice(workloads(profile, model, seed=3, shape=Shape(incidents=True)), 4):
            whole = play(scenario, profile, stop_early=False)
            thin = play(scenario, profile, stop_early=False, thin=True)

            assert whole.cached == thin.cached
            assert whole.exercised == thin.exercised
            assert [(finding.kind, finding.step) for finding in whole.findings] == [
                (finding.kind, finding.step) for finding in thin.findings
            ]


def test_a_mix_up_among_layers_is_found_though_one_of_each_kind_does_not_show_it(
    monkeypatch: Patch,
) -> None:
    def put(self: Planes, layer: int, where: tuple[list[int], slice], data: Array) -> None:
        other = {0: 3, 3: 0}.get(layer, layer)  # another layer of its kind
        self.rows[other if other in self.rows else layer][where] = data

    monkeypatch.setattr(Planes, "put", put)
    profile = Profile.parse("llama.cpp@b11549+erase-equal")
    found = search(profile, "hybrid", examples=100, shape=Shape(flags=False)).counterexample

    assert found is not None
    assert 0 == found.number % WHOLE
    assert play(found.scenario, profile, thin=True).finding is None


def test_what_shows_on_one_layer_of_each_kind_alone_is_not_told(monkeypatch: Patch) -> None:
    finding = Finding(kind="wrong answer", step=0, detail="")

    def played(*_: Any, thin: bool = False, **__: Any) -> Trial:
        return Trial(findings=[finding] if thin else [])

    monkeypatch.setattr(findings, "play", played)
    profile = Profile.parse("llama.cpp@b11549")
    scenario = next(workloads(profile, "hybrid"))

    assert trial_of(1, scenario, profile, arithmetic="ring").finding is None


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("llama.cpp@b11549", {"cache_ram": 1}),
        ("mlx-lm@0.32.2", {"prompt_cache_bytes": 100_000}),
        ("marconi@artifact", {"capacity_bytes": 100_000}),
    ],
)
def test_with_a_flag_in_bytes_every_workload_is_played_on_all_layers(
    text: str, flag: dict[str, int]
) -> None:
    profile = Profile.parse(text)
    shape = Shape(flags=False)

    assert weighs(next(workloads(profile, "hybrid", shape=replace(shape, fixed=flag))), profile)
    assert not weighs(next(workloads(profile, "hybrid", shape=shape)), profile)


def test_a_server_that_batches_by_itself_is_sent_requests_together() -> None:
    drawn = workloads(Profile.parse("mlx-lm@0.32.2"), "dense")
    steps = [step for _ in range(25) for step in next(drawn).step]

    assert {True, False} == {step.with_previous for step in steps}


def test_the_same_seed_gives_the_same_workloads() -> None:
    profile = Profile.parse("llama.cpp@b9538")
    first, second = workloads(profile, "hybrid", seed=3), workloads(profile, "hybrid", seed=3)

    assert [next(first) for _ in range(5)] == [next(second) for _ in range(5)]


def test_two_profiles_meet_on_the_same_requests() -> None:
    one, other = Profile.parse("llama.cpp@b11549"), Profile.parse("llama.cpp@b11549+24143")
    found = compare(one, other, "dense", examples=15)

    assert 15 == found.workloads
    assert 0 == found.one.wrong == found.other.wrong
    assert found.other.cached >= found.one.cached


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_what_counts_as_exercised_are_events_of_the_engine(family: Family[Any, Any]) -> None:
    known = {each.name() for name in (family.name, *family.kin) for each in events_of(name)}
    exercised = search_of(family).exercised

    assert set() == exercised.keys() - known
    assert set() == set(exercised.values()) - set(EXERCISED)


def test_a_smaller_workload_cancels_no_request_that_is_not_running() -> None:
    """Requests get new names when made small, and a cancel follows those of its own."""
    steps = (
        Step(name="first", prompt=(265,) * 20, reply=(266,)),
        Step(name="left", prompt=(267,) * 20, reply=(268,)),
        Step(name="second", prompt=(269,) * 20, reply=(270,), with_previous=True),
        Step(name="gone", do="cancel", of="left", turns=1),
        Step(name="last", prompt=(271,) * 20, reply=(272,)),
    )
    whole = replace(next(workloads(Profile.parse("sglang@0.5.9"), "dense")), step=steps)

    smallest = shrink(whole, lambda each: any(step.do == "cancel" for step in each.step))

    assert ["r0", "r1"] == [step.name for step in smallest.step]
    assert "r0" == smallest.step[1].of
    assert all(not list(check(each)) for each in (smallest, *simpler(whole), *simpler(smallest)))


def test_a_request_that_never_gets_a_reply_is_a_finding(monkeypatch: Patch) -> None:
    """The server takes it off its queue and is idle."""
    monkeypatch.setattr("cachesim.engines.llamacpp.server.LlamaCpp._process", lambda *_: None)

    profile = Profile.parse("llama.cpp@b11549")
    trial = play(next(workloads(profile, "dense")), profile)

    assert [("crash", 0, NO_REPLY)] == [(e.kind, e.step, e.detail) for e in trial.findings]


def test_processed_and_cached_tokens_that_are_not_the_prompt_s_are_a_finding(
    monkeypatch: Patch,
) -> None:
    """The server counts one processed token of three."""
    reply_of = Slot.reply
    monkeypatch.setattr(Slot, "reply", lambda *given: replace(reply_of(*given), processed=Count(1)))

    profile = Profile.parse("ik_llama.cpp@8337e4cd3")
    drawn = next(workloads(profile, "dense"))
    trial = play(replace(drawn, step=(Step(name="a", prompt=(3, 4, 5)),)), profile)

    assert [("broken invariant", 0, "0 cached and 1 processed of 3 tokens")] == [
        (finding.kind, finding.step, finding.detail) for finding in trial.findings
    ]


TWO: Final = Step(name="a", prompt=(3, 4, 5), reply=(7, 8), completions=2)


def _findings_of_two_completions() -> list[tuple[str, int, str]]:
    profile = Profile.parse("llama.cpp@b11549")
    drawn = next(workloads(profile, "dense"))
    engine = replace(drawn.engine, options={"parallel": 2})
    trial = play(replace(drawn, engine=engine, step=(TWO,)), profile)
    return [(finding.kind, finding.step, finding.detail) for finding in trial.findings]


def test_a_completion_that_is_not_returned_is_a_finding(monkeypatch: Patch) -> None:
    """The server returns the parent's completion, and not the child's."""
    assert [] == _findings_of_two_completions()

    replies = LlamaCpp.replies
    monkeypatch.setattr(LlamaCpp, "replies", lambda *given: replies(*given)[:1])

    missing = "1 of 2 completions are returned"
    assert [("broken invariant", 0, missing)] == _findings_of_two_completions()


def test_a_wrong_answer_of_a_further_completion_is_a_finding(monkeypatch: Patch) -> None:
    """The child's logits are off by one, the parent's are right."""
    replies = LlamaCpp.replies

    def with_wrong_child(*given: Any) -> tuple[Reply, ...]:
        parent, child = replies(*given)
        return parent, replace(child, logits=child.logits + 1)

    monkeypatch.setattr(LlamaCpp, "replies", with_wrong_child)

    assert [("wrong answer", 0)] == [
        completion[:2] for completion in _findings_of_two_completions()
    ]


@pytest.mark.parametrize(
    ("again", "due"),
    [((3, 4, 5, 6), 3), ((3, 4, 5), 2), ((3, 4, 5, 6, 7), 4)],
    ids=["the same prompt", "its beginning", "one that continues it"],
)
def test_a_prompt_that_is_sent_again_at_once_and_not_found_is_a_finding(
    again: tuple[int, ...], due: int, monkeypatch: Patch
) -> None:
    profile = Profile.parse("mlx-lm@0.32.2")
    drawn = next(workloads(profile, "dense"))
    steps = (Step(name="a", prompt=(3, 4, 5, 6)), Step(name="b", prompt=again))
    scenario = replace(drawn, engine=replace(drawn.engine, options={}), step=steps)
    assert [] == play(scenario, profile).findings

    monkeypatch.setattr(LRUPromptCache, "fetch", lambda _, __, tokens: miss(list(tokens), Count(0)))

    detail = f"0 of {due} tokens cached that the request before wrote"
    findings = play(scenario, profile).findings
    assert [("lost reuse", 1, detail)] == [(e.kind, e.step, e.detail) for e in findings]
    assert (Expect(finding="lost reuse", answer="any", error="any"),) == expected_of(findings[0])


def test_a_small_cache_may_have_evicted_the_prompt_that_was_sent_right_before() -> None:
    profile = Profile.parse("mlx-lm@0.32.2")
    drawn = next(workloads(profile, "dense"))
    few, default = (
        Session(replace(drawn, engine=replace(drawn.engine, options=options)), profile)
        for options in ({"prompt_cache_size": 1}, {})
    )

    assert (0, 1) == (Trial.of(few).unit, Trial.of(default).unit)


DISCONNECT = """
format = 1
name = "turns"
[model]
preset = "dense"
[engine]
name = "sglang"
profiles = ["0.5.23"]
[spans]
P = 40
[[step]]
name = "first"
prompt = "P"
predict = 4
[[step]]
do = "cancel"
of = "first"
with_previous = true
[[step]]
name = "again"
prompt = "P"
predict = 1
"""


def broken_law(scenario: str) -> str | None:
    found = play(
        loads(scenario.encode(), name="turns.toml"), Profile.parse("sglang@0.5.23")
    ).finding
    assert found is None or "broken invariant" == found.kind
    return found and found.detail


def test_a_request_that_is_answered_after_its_client_left_is_found(monkeypatch: Patch) -> None:
    assert None is broken_law(DISCONNECT)
    monkeypatch.setattr("cachesim.engines.sglang.server.Sglang.cancel", lambda *_: None)
    assert ANSWERED == broken_law(DISCONNECT)


def test_a_hit_that_differs_from_the_servers_own_lookup_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr("cachesim.engines.sglang.server.Sglang.peek", lambda *_: Count(3))
    assert "0 cached, a lookup right before it found 3" == broken_law(
        DISCONNECT.replace('do = "cancel"\nof = "first"\nwith_previous = true', 'prompt = "P P"')
    )


@pytest.mark.parametrize(
    ("returned", "predict", "detail"),
    [
        ((9, 2), 2, "[9, 2] is returned for the sampled tokens [1, 2]"),
        ((1,), 2, "1 of 2 tokens are returned"),
        ((1, 2, 3), 2, "3 of 2 tokens are returned"),
        ((1, 2), 2, None),
        ((1,), 1, None),
        ((1, 2), 1, "2 of 1 tokens are returned"),
        ((1, 2), 5, None),  # the end of the sampled tokens ends a reply
        ((1, 2, 3), 5, "3 of 2 tokens are returned"),
        ((1, 2), -1, None),
    ],
)
def test_a_reply_that_is_not_the_sampled_one_is_found(
    returned: tuple[int, ...], predict: int, detail: str | None, monkeypatch: Patch
) -> None:
    reply_of = Sglang.reply

    def changed(self: Sglang, ticket: Ticket) -> Reply | None:
        found = reply_of(self, ticket)
        return found and replace(found, generated=as_tokens(returned))

    monkeypatch.setattr(Sglang, "reply", changed)
    prompt = f'prompt = "P"\nreply = [1, 2]\npredict = {predict}\n'
    scenario = DISCONNECT.partition("[[step]]")[0] + f'[[step]]\nname = "a"\n{prompt}'

    assert detail == broken_law(scenario)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loop, sessions, findings):
        monkeypatch.setattr(module, "LONGEST_TURN", 0.3)
        monkeypatch.setattr(module, "PER_TOKEN", 0.0, raising=False)


def _never(*_: object) -> None:
    while True:
        pass


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize(
    ("profile", "owner", "name"),
    [
        ("vllm@0.33.0", Coordinator, "find_longest_cache_hit"),
        ("llama.cpp@b11549", prompt_cache.PromptCache, "contains"),
        ("vllm@0.33.0", Vllm, "check_integrity"),
    ],
)
def test_a_port_that_loops_for_ever_is_a_finding(
    profile: str, owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, _never)

    report = search(Profile.parse(profile), "dense", examples=4)

    assert report.counterexample is not None
    assert "crash" == report.counterexample.finding.kind
    assert loop.FOREVER == report.counterexample.finding.detail


@pytest.mark.usefixtures("short_turns")
def test_a_run_and_a_trace_of_a_port_that_loops_for_ever_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Coordinator, "find_longest_cache_hit", _never)
    chat = {
        "format": 1,
        "name": "chat",
        "model": {"preset": "dense"},
        "engine": {"name": "vllm", "profiles": ["0.33.0"]},
        "spans": {"S": 40},
        "step": [{"prompt": "S", "predict": 1}, {"prompt": "S", "predict": 1}],
    }

    played = run_scenario(chat, arithmetic="ring")
    replayed = replay(Cell(source=Source(name="made:3"), profile="vllm@0.33.0", model="dense"))

    assert not played.as_expected
    assert loop.FOREVER in played.steps[0].message
    assert loop.FOREVER in replayed["ended"]


@pytest.mark.parametrize("arithmetic", ["ring", "float"])
def test_replies_that_are_decoded_at_once_change_no_decision(
    arithmetic: ArithmeticName, monkeypatch: Patch
) -> None:
    """A workload on one layer of each kind has such replies; one on all layers has none."""
    profile = Profile.parse("llama.cpp@b11549")
    joined = 0

    def counted(*run: Any) -> bool:
        nonlocal joined
        joined += 1
        return at_once(*run)

    at_once = server_batch._decode_replies
    monkeypatch.setattr(server_batch, "_decode_replies", counted)
    drawn = islice(workloads(profile, "hybrid", seed=3), 12)
    for scenario in (each for each in drawn if is_thin(1, each, profile)):
        thin = play(scenario, profile, arithmetic=arithmetic, thin=True)
        before = joined
        whole = play(scenario, profile, arithmetic=arithmetic)
        assert before == joined
        assert (whole.cached, whole.findings) == (thin.cached, thin.findings)
    assert joined
