"""Actions of users beside conversations: drawn, sent over HTTP, and counted by feature."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

from cachesim.engines.llamacpp.options import Pooling
from cachesim.play.session import CANCELLED
from cachesim.prove.llama_cpp import server as room
from cachesim.prove.llama_cpp.calls import call_for, outcomes_of
from cachesim.prove.llama_cpp.fitting import hurdle
from cachesim.prove.llama_cpp.server import Worker
from cachesim.prove.llama_cpp.simulated import SimulatedServer, observed_step
from cachesim.prove.llama_cpp.workload import Outcome, in_one_call
from cachesim.prove.llama_cpp.workload import workload as workload_of
from cachesim.scenario.format import FORMAT, Chat, Model, Scenario, Server, Step, Turn
from cachesim.units import Tokens, as_tokens
from conformance.real.llama_cpp.compare import features_of
from conformance.real.llama_cpp.workloads import OFTEN, Incidents, draw_setting, grow
from conformance.tests.real.test_workloads import Parrot

T = as_tokens(range(300, 340))
EVERYTHING = {"parallel": 2, "embedding": True, "sleep_idle_seconds": 2}


def incidents(**options: Any) -> Incidents:
    def fresh(count: int) -> Tokens:
        return as_tokens([400] * count)

    return Incidents(Random(3), options, 1024, lambda: T, fresh)


def kinds(drawer: Incidents) -> Counter[str]:
    found: Counter[str] = Counter()
    for number in range(1, 400):
        for step in drawer.draw(number)[:1]:
            endpoint = step.options.get("endpoint", "")
            several = "several" if step.completions > 1 else ""
            given_up = "cancel" if step.leaves else ""
            found[endpoint or several or given_up or step.do] += 1
    return found


def workload(*steps: Step, **options: Any) -> Scenario:
    return workload_of("w", release="b11549", preset="dense", options=options, steps=steps)


def test_each_kind_is_drawn_where_the_server_can_be_asked_for_it() -> None:
    assert set(kinds(incidents(**EVERYTHING))) == {
        "restart", "sleep", "embedding", "infill", "several",
    }  # fmt: skip
    assert set(kinds(incidents(parallel=1))) == {"restart", "infill", "cancel"}
    assert "rerank" in kinds(incidents(parallel=1, embedding=True, pooling="rank"))
    assert set(OFTEN) == {"restart", "sleep", "embed", "infill", "cancel", "several"}


def test_no_server_is_restarted_before_it_was_asked_for_anything() -> None:
    assert [()] * 50 == [incidents(**EVERYTHING).draw(0) for _ in range(50)]


def test_embeddings_documents_and_gaps_have_calls_of_their_own() -> None:
    embed = Step(name="a", prompt=T[:2], options={"endpoint": "embedding"})
    rank = Step(name="a", prompt=T[:3], query=1, options={"endpoint": "rerank"})
    gap = Step(name="a", prompt=T[:1], suffix=T[1:2], options={"endpoint": "infill"})

    assert {"path": "/embedding", "body": {"content": [300, 301]}} == call_for((embed,))
    ranked = {"query": "[300]", "documents": ["[301][302]"]}
    assert {"path": "/rerank", "body": ranked} == call_for((rank,))
    call = call_for((gap,))
    assert ("/infill", "[300]", "[301]") == (
        call["path"], call["body"]["input_prefix"], call["body"]["input_suffix"],
    )  # fmt: skip
    assert "endpoint" not in call["body"]
    answer = {"status": 200, "body": [{"embedding": [[0.5]]}]}
    assert (Outcome(slot=None, truncated=None),) == outcomes_of((embed,), answer)


def test_tools_parts_and_further_completions_go_out_in_the_server_s_words() -> None:
    chat = Step(
        name="a",
        messages=(Turn(role="user", content="[300]\n[301]"),),
        parts=True,
        options={"tools": ["[400]"], "add_generation_prompt": False},
    )
    body = call_for((chat,))["body"]

    assert ["[300]", "[301]"] == [each["text"] for each in body["messages"][0]["content"]]
    assert ("[400]", "none") == (body["tools"][0]["function"]["name"], body["tool_choice"])
    assert body["add_generation_prompt"] is False
    assert 3 == call_for((Step(name="a", prompt=T, completions=3),))["body"]["n_cmpl"]


def test_a_request_says_cache_prompt_only_where_it_is_meant() -> None:
    plain, off = Step(name="a", prompt=T), Step(name="a", prompt=T, cache_prompt=False)
    said = Step(name="a", prompt=T, options={"cache_prompt": True})

    bodies = [call_for((each,))["body"].get("cache_prompt") for each in (plain, off, said)]

    assert [None, False, True] == bodies


def test_a_request_that_was_given_up_leaves_as_much_as_the_real_one() -> None:
    played = workload(Step(name="gone", prompt=T, predict=20_000, leaves="replying"), parallel=1)
    simulated = SimulatedServer(played)
    real = Outcome(reply=as_tokens([400, 401]), slot=None, truncated=None, error=CANCELLED)

    (answer,) = simulated.send([observed_step(played.step[0], real)])
    (again,) = simulated.send((Step(name="again", prompt=T + real.reply + T[:1], predict=1),))

    assert real.agrees_with(answer)
    assert 42 == again.cached


def test_what_a_workload_uses_is_told_by_flags_and_by_steps() -> None:
    used = workload(
        Step(name="a", prompt=T, slot=0),
        Step(name="b", do="restart"),
        Step(name="c", prompt=T, completions=2),
        parallel=2,
        cache_type_k="f32",
    )

    wanted = {"any", "several slots", "cache type", "slot named", "restart", "completions"}
    assert wanted == features_of(used)
    assert {"any"} == features_of(workload(Step(name="a", prompt=T), parallel=1, ctx_size=256))


@pytest.mark.thorough
def test_everything_is_drawn_by_default_beside_the_real_server() -> None:
    used: Counter[str] = Counter()
    for number in range(150):
        setting = draw_setting(4, number, release="b11549", everything=True)
        used.update(features_of(grow(setting, Parrot())[0]))

    wanted = {"trained context", "swa-full", "one pool of cells", "cache-reuse"}
    assert {"cancel", "chat", "completions", "embedding", "infill", "restart", "slot file"} <= set(
        used
    )
    assert {"tools", "content parts", "no opened reply", "n-grams", "cache type"} <= set(used)
    assert wanted <= set(used)


def test_every_kind_of_pooling_is_drawn() -> None:
    settings = [draw_setting(4, number, release="b11549", everything=True) for number in range(800)]

    assert {None, *get_args(Pooling)} == {setting.options.get("pooling") for setting in settings}


# A real server that does not answer is told by its process: gone, turning for ever, or waiting.


@pytest.fixture(name="worker")
def _worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Worker]]:
    """Start a process that does as it is told in place of a server, and end it afterwards."""
    monkeypatch.setattr(room, "SECONDS_WATCHED", 0)
    started: list[Worker] = []

    def start(script: str) -> Worker:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        python.chmod(0o755)
        started.append(Worker(python, None, patience=0.2))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_a_process_that_ended_has_crashed(worker: Callable[[str], Worker]) -> None:
    assert "crash" == worker("exit 134").order({})


def test_a_process_that_neither_works_nor_answers_is_silent(
    worker: Callable[[str], Worker],
) -> None:
    assert "silent" == worker("exec sleep 60").order({})


def test_a_process_that_goes_on_computing_is_endless(
    worker: Callable[[str], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()
    monkeypatch.setattr(Worker, "_seconds_computed", lambda _: float(next(seconds)))

    assert "endless" == worker("exec sleep 60").order({})


def test_the_processor_time_is_read_in_every_form(
    worker: Callable[[str], Worker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = worker("exec sleep 60")
    monkeypatch.setattr(room.Path, "is_file", lambda _: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = tmp_path / "ps"
    for text, seconds in (("00:07", 7), ("01:02:03", 3723), ("1-00:00:02.5", 86402.5), ("", 0)):
        said.write_text(f"#!/bin/sh\necho '  {text}'\n", encoding="utf-8")
        said.chmod(0o755)
        assert seconds == silent._seconds_computed()


# Replies that a scenario brings are said by the real server too.

SAID = Step(prompt=(300,), reply=(400, 401))


def scenario(*steps: Step) -> Scenario:
    return Scenario(
        format=FORMAT,
        name="forced",
        model=Model(preset="dense"),
        engine=Server(name="llama.cpp", profiles=("b11549",)),
        step=steps,
    )


def test_a_reply_is_forced_by_a_grammar_of_its_tokens() -> None:
    step = replace(SAID, predict=2)

    body = call_for([step])["body"]

    assert ("root ::= <[400]> <[401]>", 2) == (body["grammar"], body["n_predict"])
    assert "grammar" not in call_for([replace(step, reply=None)])["body"]


def test_prompts_of_one_call_are_forced_where_they_get_the_same_reply() -> None:
    together = replace(SAID, with_previous=True)
    other = replace(together, reply=(402, 403))

    assert [[0, 1], [2]] == list(in_one_call(scenario(SAID, together, SAID)))
    assert "" == hurdle(scenario(SAID, together), 1)
    assert "" == hurdle(scenario(SAID, other), 1)
    longer = replace(together, reply=(402, 403, 404))
    assert "replies of one length" in hurdle(scenario(SAID, longer), 1)


def test_what_hangs_on_the_real_clock_is_not_played() -> None:
    assert "clock" in hurdle(scenario(SAID, Step(do="cancel")), 1)


def test_a_chat_is_played_where_the_model_file_has_its_template() -> None:
    chat = Step(messages=(Turn(role="user", content="hi"),))
    assert "" == hurdle(scenario(SAID, chat), 1)
    told = replace(scenario(SAID, chat), chat=Chat(template="strip-reasoning"))
    assert "chat template is chatml" in hurdle(told, 1)


def test_given_drafts_are_not_played_for_a_real_companion_has_its_own() -> None:
    assert "drafts of its own" in hurdle(scenario(SAID, replace(SAID, drafts=((400,),))), 1)
