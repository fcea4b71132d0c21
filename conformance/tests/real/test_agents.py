"""Workloads of coding agents: how they grow, and that every engine's are played to their end."""

import struct
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from cachesim.engines.family import Family
from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.play.session import CANCELLED
from cachesim.prove.hunt.arrivals import ROOM, draw_arrival, draw_pinned
from cachesim.prove.llama_cpp.calls import call_for, outcomes_of
from cachesim.prove.llama_cpp.fitting import Release
from cachesim.prove.llama_cpp.gguf import text_of
from cachesim.prove.llama_cpp.simulated import SimulatedServer, observed_step
from cachesim.prove.llama_cpp.worker import tokens_of
from cachesim.prove.llama_cpp.workload import Outcome, grouped, workload
from cachesim.prove.rows import read_row
from cachesim.scenario.format import Scenario, Step, Turn
from cachesim.units import as_tokens
from conformance.real.llama_cpp.agents import draw_agents, grow_agents
from conformance.real.llama_cpp.chats import ChatTree, Message, as_messages
from conformance.real.mlx_lm.server_workloads import draw_agents as draw_mlx_agents
from conformance.real.prompts import MOVES, Agents, Conversation, Sizes
from conformance.real.sglang import workloads as sglang
from conformance.real.sglang.playing import play as play_sglang
from conformance.real.vllm import workloads as vllm
from conformance.real.vllm.playing import play as play_vllm
from conformance.tests.real.test_workloads import Parrot

LONGEST = 4000


def played(seed: int, turns: int = 60) -> list[tuple[str, tuple[Conversation, ...]]]:
    """Turns of one user's agents, and their requests."""
    rng = Random(seed)
    agents = Agents(rng, lambda count: [rng.randrange(10**6) for _ in range(count)], SIZES)
    found = []
    for _ in range(turns):
        talks = agents.next()
        found.append((agents.move, talks))
        agents.learn([(1, 2, 3, 4)] * len(talks))
    return found


SIZES = Sizes.within(LONGEST)


def test_agents_go_on_in_every_way_and_never_ask_for_more_than_fits() -> None:
    turns = [turn for seed in range(5) for turn in played(seed)]

    assert {"first"} | {move.__name__ for move, _ in MOVES} == {move for move, _ in turns}
    assert all(len(talk.tokens) <= LONGEST for _, talks in turns for talk in talks)
    assert any(len(talk.tokens) > LONGEST // 2 for _, talks in turns for talk in talks)


def test_sub_agents_share_their_beginning_and_part_where_their_tasks_begin() -> None:
    groups = [talks for seed in range(5) for move, talks in played(seed) if len(talks) > 1]

    assert groups
    for one, *others in groups:
        assert all(other.head == one.head for other in others)
        assert all(other.tokens != one.tokens for other in others)


def test_a_date_in_the_system_prompt_changes_one_token_of_it() -> None:
    changed = []
    for seed in range(8):
        before = Conversation((), ())
        for move, (talk, *_) in played(seed):
            if move == "with_clock" and before.head and before.head[1:] == talk.head[1:]:
                pairs = zip(before.head[0], talk.head[0], strict=True)
                changed.append(sum(old != new for old, new in pairs))
            before = talk
    assert changed
    assert {1} >= set(changed)


def grown(number: int) -> Scenario:
    setting = draw_agents(5, number, release="b11549", presets=("dense", "recurrent"))
    server = Parrot(lambda step: Outcome(reply=as_tokens([300]) * min(step.predict or 0, 9)))
    return grow_agents(setting, server)[0]


@pytest.mark.thorough
def test_agents_use_slots_files_chats_and_tools_and_some_hang_up_or_arrive_meanwhile() -> None:
    workloads = [grown(number) for number in range(60)]
    steps = [step for each in workloads for step in each.step]
    found = Counter(
        kind
        for step in steps
        for kind, stands in {
            "gone": step.leaves == "replying",
            "gone while it was read": step.leaves == "reading",
            "arrives": bool(step.turns),
            "together": step.with_previous and not step.turns,
            "chat": bool(step.messages),
            "tools": "tools" in step.options,
            step.do: step.do != "complete",
            "long": len(step.ids) > 4000,
        }.items()
        if stands
    )

    wanted = {"gone", "gone while it was read", "arrives", "together", "chat", "tools", "long"}
    assert wanted | {"slot-save", "slot-restore", "slot-erase"} == set(found)
    assert {1, 2, 4} == {each.engine.options["parallel"] for each in workloads}
    assert workloads == [grown(number) for number in range(60)]


@pytest.mark.thorough
def test_who_arrives_meanwhile_finds_more_than_a_batch_to_be_read() -> None:
    groups = [group for number in range(80) for group in grouped(grown(number).step)]
    pairs = [group for group in groups if any(step.turns for step in group)]

    assert pairs
    for reading, first, *others in pairs:
        assert len(reading.ids) >= 2100
        assert [1] + [None] * len(others) == [first.turns, *(other.turns for other in others)]


def test_a_prompt_that_was_given_up_is_read_as_far_as_on_the_real_server() -> None:
    prompt = as_tokens([300 + number % 200 for number in range(5000)])
    gone = Step(name="gone", prompt=prompt, slot=0, predict=9, leaves="reading")
    options = {"ctx_size": 8192, "parallel": 1}
    server = SimulatedServer(
        workload("w", release="b11549", preset="dense", options=options, steps=())
    )
    real = Outcome(processed=4096, slot=None, truncated=None, error=CANCELLED)

    (answer,) = server.send([observed_step(gone, real)])
    (again,) = server.send((Step(name="again", prompt=prompt, predict=1),))

    assert real.agrees_with(answer)
    assert (4096, 904) == (again.cached, again.processed)


def test_a_server_that_stops_elsewhere_is_told() -> None:
    prompt = as_tokens([300] * 5000)
    gone = Step(name="gone", prompt=prompt, slot=0, predict=9, leaves="reading")
    asked = workload("w", release="b11549", preset="dense", options={"ctx_size": 8192}, steps=())

    (answer,) = SimulatedServer(asked).send([observed_step(gone, Outcome(processed=3000))])

    assert "read 4096" == answer.error


@pytest.mark.parametrize("listed", [[300, 301, 302], [-1, 1, 3, 300, 301, 302, 0]])
def test_the_tokens_of_a_slot_are_read_from_old_files_and_new_ones(listed: list[int]) -> None:
    data = struct.pack(f"<III{len(listed)}i", 0, 0, len(listed), *listed) + b"states"

    assert [300, 301, 302] == tokens_of(data)


def releases_of(family: Family) -> list[Any]:
    """The releases of an engine, all but the newest for `make check`."""
    *older, newest = family.names()
    return [newest, *(pytest.param(each, marks=pytest.mark.thorough) for each in older)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("release", releases_of(VLLM))
def test_agents_workloads_for_vllm_come_to_their_end(release: str) -> None:
    rules = VLLM.release(release).rules

    drawn = [vllm.draw_agents(1, number, rules) for number in range(6)]

    assert drawn == [vllm.draw_agents(1, number, rules) for number in range(6)]
    assert [None] * 6 == [play_vllm(each, rules)[-1].get("error") for each in drawn]
    assert any(len(read_row(asked["prompt"])) > 1000 for asked in requests_of(drawn))


@pytest.mark.parametrize("release", releases_of(SGLANG))
def test_agents_workloads_for_sglang_come_to_their_end(release: str) -> None:
    rules = SGLANG.release(release).rules

    drawn = [sglang.draw_agents(2, number, rules) for number in range(6)]

    assert drawn == [sglang.draw_agents(2, number, rules) for number in range(6)]
    assert [None] * 6 == [play_sglang(each, rules)[-1].get("error") for each in drawn]
    assert any(len(read_row(asked["prompt"])) > 1000 for asked in requests_of(drawn))


def test_agents_chats_for_mlx_lm_have_tools_and_system_prompts_of_hundreds_of_words() -> None:
    drawn = [draw_mlx_agents("0.32.2", 1, number) for number in range(12)]
    requests = [request for each in drawn for group in each["steps"] for request in group]

    assert drawn == [draw_mlx_agents("0.32.2", 1, number) for number in range(12)]
    assert any(len(request["messages"][0]["content"].split()) > 200 for request in requests)
    assert {"system", "user", "assistant", "tool"} <= {
        message["role"] for request in requests for message in request["messages"]
    }
    assert any("tools" in request for request in requests)


def requests_of(drawn: Sequence[dict[str, list[list[dict[str, str]]]]]) -> list[dict[str, str]]:
    groups = (group for each in drawn for group in each["steps"])
    return [asked for group in groups for asked in group if "prompt" in asked]


# Chats in the toy vocabulary: drawn, sent as messages, grown from what was answered.

CHAT = (Message("system", (300,)), Message("user", (301, 302)))


def tree() -> ChatTree:
    return ChatTree(Random(1), words=200, longest=600)


def test_tokens_are_sent_as_their_texts() -> None:
    assert text_of(as_tokens([300, 301])) == "[300][301]"
    assert as_messages(CHAT) == (
        Turn(role="system", content="[300]"),
        Turn(role="user", content="[301][302]"),
    )


def test_chats_grow_from_what_was_answered() -> None:
    chats, seen = tree(), []
    for _ in range(80):
        messages = chats.next()
        seen.append(messages)
        chats.learn(messages, as_tokens([400, 401]))

    assert any(len(chat) >= 5 for chat in seen)
    assert any(Turn(role="assistant", content="[400][401]") in chat for chat in seen)
    assert any(Turn(role="assistant", content="[401]") in chat for chat in seen)
    assert len(set(seen)) > 40


def test_clients_ask_for_replies_to_be_continued_and_speak_in_unknown_roles() -> None:
    chats, last, roles = tree(), [], set()
    for _ in range(200):
        messages = chats.next()
        last.append(messages[-1])
        roles |= {message.role for message in messages}
        chats.learn(messages, as_tokens([400, 401]))

    continued = [each.content for each in last if each.role == "assistant"]
    assert {"", "[400]", "[400][401]"} <= set(continued)
    assert {"system", "developer", "user", "assistant", "tool", "ipython"} <= roles


def test_a_continued_reply_is_one_message_in_the_next_chat() -> None:
    chats = tree()
    for _ in range(300):
        messages = chats.next()
        assert ("assistant", "assistant") not in pairwise([message.role for message in messages])
        chats.learn(messages, as_tokens([400]))


def test_a_refused_chat_ends_with_two_messages_of_the_assistant() -> None:
    assert ["assistant"] * 2 == [each.role for each in tree().refused()[-2:]]


def test_a_chat_step_goes_out_as_messages() -> None:
    call = call_for((Step(name="a", messages=as_messages(CHAT), predict=3),))

    assert call["path"] == "/v1/chat/completions"
    assert call["body"]["messages"] == [
        {"role": "system", "content": "[300]"},
        {"role": "user", "content": "[301][302]"},
    ]


def test_a_chat_reply_is_read_as_tokens_and_hides_its_slot() -> None:
    step = Step(name="a", messages=as_messages(CHAT))
    body = {
        "choices": [{"message": {"role": "assistant", "content": "[269][293]"}}],
        "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 2},
    }

    (outcome,) = outcomes_of((step,), {"status": 200, "body": body})

    assert outcome.reply == as_tokens([269, 293])
    assert outcome.agrees_with(
        Outcome(cached=3, processed=4, reply=as_tokens([1, 2]), slot=2, truncated=True)
    )
    assert not outcome.agrees_with(Outcome(cached=4, processed=3, reply=as_tokens([1, 2])))


def test_a_reply_that_says_the_continued_message_again_is_what_was_generated() -> None:
    body = {
        "choices": [{"message": {"role": "assistant", "content": "[300][301][302]"}}],
        "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 1},
    }

    (outcome,) = outcomes_of(
        (Step(name="a", messages=as_messages(CHAT)),), {"status": 200, "body": body}
    )

    assert outcome.reply == as_tokens([302])


# Drawn workloads in which a request arrives while another one is read.

BATCH = 2048


@pytest.mark.parametrize("number", range(30))
def test_the_other_request_arrives_between_two_batches(number: int) -> None:
    workload = draw_arrival(0, number, release="b11549")

    *alone, pair, after = list(grouped(workload.step))
    reading, arriving = pair
    assert all(len(group) == 1 and not group[0].turns for group in (*alone, after))
    assert (None, 1) == (reading.turns, arriving.turns)
    assert len(reading.ids) > BATCH
    assert all(len(step.ids) < ROOM // 3 for step in workload.step)
    assert "batch_size" not in workload.engine.options


@pytest.mark.parametrize("release", ["b9538", "b11549"])
def test_some_meet_a_slot_at_work(release: Release) -> None:
    met = 0
    for number in range(12):
        workload = draw_arrival(1, number, release=release, presets=("recurrent",))
        server = SimulatedServer(workload)
        for group in grouped(workload.step):
            server.send(group)
            if server.lost:
                break
        met += any(event.name() == "task-deferred" for event in server.session.engine.events)
    assert met >= 3


def test_somebody_names_the_slot_that_reads_and_goes_on_with_what_is_parked() -> None:
    drawn = [draw_pinned(0, number, release="b11549") for number in range(40)]

    for each in drawn:
        parked, reading, arriving = each.step
        assert parked.ids == arriving.ids[: len(parked.ids)]
        assert len(reading.ids) > BATCH
        assert {-1: True, 0: True}[arriving.slot]
    assert {-1, 0, 1} == {
        (len(each.step[0].ids) > len(each.step[1].ids))
        - (len(each.step[0].ids) < len(each.step[1].ids))
        for each in drawn
    }
