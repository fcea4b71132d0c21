"""Workloads: drawn from a seed, written and read, cut into calls, made smaller."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cachesim.engines.base import Engine
from cachesim.engines.llamacpp.options import CONTEXT_STEP, TRAINED_CONTEXT
from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.errors import OptionError
from cachesim.prove.hunt.arrivals import draw_arrival
from cachesim.prove.llama_cpp.calls import call_for, outcomes_of
from cachesim.prove.llama_cpp.fitting import PRESETS, Abilities, Release
from cachesim.prove.llama_cpp.flags import effective_ubatch, parameters
from cachesim.prove.llama_cpp.simulated import SimulatedServer
from cachesim.prove.llama_cpp.workload import Outcome, arriving, grouped, workload
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Model, Scenario, Step
from cachesim.testing.search import shrink
from cachesim.units import Tokens, as_tokens
from conformance.real.llama_cpp.workloads import draw_setting, grow
from conformance.real.mlx_lm.classes import draw as draw_classes
from conformance.real.mlx_lm.server_workloads import draw_workload
from conformance.real.sglang import workloads as sglang
from conformance.real.transformers.caches import draw as draw_batch
from conformance.real.vllm import workloads as vllm
from conformance.real.vllm.steps import draw_steps


def reply_of(step: Step) -> Tokens:
    return as_tokens((step.ids or (300,))[-1:]) * max(1, step.predict or 0)


def repeated(step: Step) -> Outcome:
    """The prompt's last token, as often as it was asked for."""
    return Outcome(cached=0, processed=len(step.ids), reply=reply_of(step), slot=0)


@dataclass
class Parrot:
    """A server that says what it is told to of each step."""

    answer: Callable[[Step], Outcome] = repeated
    lost: bool = False
    asked: list[tuple[Step, ...]] = field(default_factory=list)

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        self.asked.append(tuple(group))
        return tuple(map(self.answer, group))


def drawn(number: int, *, release: Release = "b11549") -> tuple[Scenario, Parrot]:
    server = Parrot()
    return grow(draw_setting(5, number, release=release), server)[0], server


def on_dense(options: dict[str, int]) -> Scenario:
    return workload("w", release="b9538", preset="dense", options=options, steps=())


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed, number: sglang.draw(seed, number, SGLANG.release("0.5.23").rules),
        lambda seed, number: vllm.draw(seed, number, VLLM.release("0.33.0").rules),
        lambda seed, number: draw_steps(seed, number, VLLM.release("0.30.0").rules),
        lambda seed, number: draw_workload("0.31.3", seed, number),
        lambda seed, number: draw_classes("0.32.2", seed, number),
        lambda seed, number: draw_arrival(seed, number, release="b9538"),
        draw_batch,
    ],
    ids=["sglang", "vllm", "steps", "mlx-lm", "classes of mlx-lm", "arrival", "batch"],
)
def test_a_workload_depends_on_its_seed_and_number_alone(draw: Callable[[int, int], Any]) -> None:
    assert draw(3, 7) == draw(3, 7)
    assert draw(3, 7) != draw(4, 7)
    assert draw(3, 7) != draw(3, 8)


def test_a_seed_draws_the_same_workload_again() -> None:
    assert [drawn(n)[0] for n in range(10)] == [drawn(n)[0] for n in range(10)]


def test_seeds_and_numbers_draw_different_workloads() -> None:
    assert len({str(drawn(n)[0]) for n in range(30)}) == 30


def test_steps_that_go_out_together_ask_for_the_same_things() -> None:
    groups = [group for n in range(200) for group in drawn(n)[1].asked if len(group) > 1]

    assert groups
    for first, *others in groups:
        assert not first.with_previous
        assert first.slot == -1
        for other in others:
            assert other.with_previous
            assert (first.predict, first.cache_prompt) == (other.predict, other.cache_prompt)


def test_conversations_extend_repeat_and_cut_what_was_said() -> None:
    extended = repeated = cut = fresh = 0
    for n in range(150):
        asked, _ = drawn(n)
        said: list[tuple[int, ...]] = []
        for step in asked.step:
            if step.do != "complete":
                continue
            extended += any(step.ids[: len(each)] == each != step.ids for each in said)
            repeated += any(step.ids == each for each in said)
            cut += any(each[: len(step.ids)] == step.ids != each for each in said)
            fresh += all(step.ids[:1] != each[:1] for each in said)
            said.append(step.ids + reply_of(step))

    assert min(extended, repeated, cut, fresh) > 15, (extended, repeated, cut, fresh)


@pytest.mark.parametrize("release", ["b9093", "b9538", "b11549"])
@pytest.mark.parametrize("preset", PRESETS)
def test_drawn_flags_are_flags_of_the_release(release: Release, preset: str) -> None:
    if preset not in Abilities(release).presets:
        return
    for n in range(40):
        setting = draw_setting(1, n, release=release, presets=(preset,))

        Engine.create(
            f"llama.cpp@{release}",
            model=spec_of(Model(preset=preset, window=setting.window or None)),
            options=setting.options,
            arithmetic="ring",
        )
        assert parameters(setting.options).items() >= {"warmup": False}.items()


def test_runs_of_requests_are_sent_that_the_server_refuses_or_answers_with_nothing() -> None:
    runs = []
    for n in range(60):
        asked, _ = drawn(n)
        context = draw_setting(5, n, release="b11549").context
        vain = [
            not step.prompt and not step.messages if step.do == "complete" else False
            for step in asked.step
        ]
        vain = [
            each or len(step.ids) >= context for each, step in zip(vain, asked.step, strict=True)
        ]
        runs.append(max(len(run) for run in "".join(".x"[each] for each in vain).split(".")))

    assert max(runs) >= 10, runs
    assert sum(run > 0 for run in runs) >= 15, runs


def test_a_prompt_may_go_out_as_text() -> None:
    step = Step(name="a", prompt=as_tokens([300, 301]), options={"prompt_string": True})
    body = call_for((step,))["body"]

    assert ("[300][301]", False) == (body["prompt"], "prompt_string" in body)


def test_an_empty_list_is_refused_alone_and_answered_among_others() -> None:
    server = SimulatedServer(on_dense({"parallel": 2}))
    empty = Step(name="a", prompt=(), predict=1)

    assert ["invalid_request_error"] == [each.error for each in server.send([empty])]
    both = server.send([empty, replace(B, name="b")])
    assert [(None, 0), (None, 1)] == [(each.error, each.processed) for each in both]


def test_flags_reach_the_wheel_under_its_own_names() -> None:
    values = parameters(
        {"parallel": 2, "context_shift": True, "spec_type": "draft-mtp", "cache_type_k": "f32"}
    )

    assert values["n_parallel"] == 2
    assert values["ctx_shift"] is True
    assert values["speculative.types"] == [
        "enum:common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP"
    ]
    assert values["cache_type_k"] == "enum:ggml_type.GGML_TYPE_F32"


def test_an_unknown_flag_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="slots"):
        parameters({"slots": 2})


def test_the_ubatch_is_bounded_by_batch_and_context() -> None:
    assert effective_ubatch(parameters({})) == 512
    assert effective_ubatch(parameters({"ubatch_size": 64, "batch_size": 32})) == 32
    assert effective_ubatch(parameters({"ctx_size": 256})) == 256


A = Step(name="a", prompt=as_tokens([1, 2]), predict=3)
B = Step(name="b", prompt=as_tokens([3]), predict=3, with_previous=True)
SAVE = Step(name="s", do="slot-save", slot=1, file="f")


def test_steps_that_follow_at_once_join_the_group_before_them() -> None:
    assert [(A, B), (SAVE,), (A,)] == list(grouped([A, B, SAVE, A]))


def test_steps_that_arrive_later_are_calls_of_their_own() -> None:
    late = replace(B, turns=1)

    assert [(A, B), (late, B), (late,)] == list(arriving([A, B, late, B, late]))


def test_the_simulator_waits_as_many_turns_before_a_step_arrives() -> None:
    long = Step(name="long", prompt=(300,) * 40, predict=1, slot=0)
    late = Step(name="late", prompt=(301,), predict=1, slot=0, with_previous=True, turns=2)
    server = SimulatedServer(on_dense({"parallel": 1, "batch_size": 16, "ubatch_size": 16}))

    assert [None, None] == [outcome.error for outcome in server.send([long, late])]
    names = [event.name() for event in server.session.engine.events]
    assert 2 == names[: names.index("task-deferred")].count("batch-decoded")


def test_a_group_is_one_call_with_several_prompts() -> None:
    body = call_for((A, B))["body"]

    assert [[1, 2], [3]] == body["prompt"]
    assert "id_slot" not in body


def test_a_pinned_step_names_its_slot() -> None:
    assert call_for((replace(A, slot=2),))["body"]["id_slot"] == 2


def test_a_slot_action_is_a_call_of_its_own() -> None:
    assert call_for((SAVE,)) == {"path": "/slots/1?action=save", "body": {"filename": "f"}}


def test_a_refusal_is_the_server_s_own_word() -> None:
    refused = {"status": 400, "body": {"error": {"type": "exceed_context_size_error"}}}

    assert outcomes_of((A,), refused) == (Outcome(error="exceed_context_size_error"),)


def test_an_answer_is_read_field_by_field() -> None:
    body = {
        "tokens": [7, 8],
        "id_slot": 1,
        "truncated": True,
        "timings": {"cache_n": 1, "prompt_n": 2, "draft_n": 3, "draft_n_accepted": 1},
    }

    outcomes = outcomes_of((A,), {"status": 200, "body": body})

    assert outcomes == (
        Outcome(
            cached=1,
            processed=2,
            reply=as_tokens([7, 8]),
            slot=1,
            truncated=True,
            drafted=3,
            accepted=1,
        ),
    )


def test_shrinking_keeps_the_property_and_nothing_else() -> None:
    noisy = workload(
        "n",
        release="b9538",
        preset="dense",
        options={"parallel": 2, "ctx_size": 512},
        steps=tuple(
            Step(name=f"r{n}", prompt=as_tokens(range(10 * n, 10 * n + 20)), predict=8)
            for n in range(6)
        ),
    )

    smallest = shrink(noisy, lambda each: any(33 in step.ids for step in each.step), trials=1000)

    assert smallest.engine.options == {}
    assert len(smallest.step) == 1
    assert smallest.step[0].prompt == (33,)
    assert smallest.step[0].predict == 1


def test_shrinking_stops_after_its_trials() -> None:
    asked: list[Scenario] = []
    whole, _ = drawn(1)

    def never(each: Scenario) -> bool:
        asked.append(each)
        return False

    shrink(whole, never, trials=7)

    assert len(asked) == 7


def test_what_is_too_long_for_a_trained_context_lies_beyond_it() -> None:
    """The server rounds a slot's share up; a prompt just within it is read for minutes."""
    drawn_for = [
        draw_setting(6, number, release="b11549", everything=True) for number in range(400)
    ]
    trained = [each for each in drawn_for if not each.options["ctx_size"]]
    assert trained

    for setting in trained:
        slots = 1 if setting.options.get("kv_unified") else setting.options["parallel"]
        share = TRAINED_CONTEXT / slots
        rounded = math.ceil(share / CONTEXT_STEP) * CONTEXT_STEP
        assert setting.too_long >= rounded
