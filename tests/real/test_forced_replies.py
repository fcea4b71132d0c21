"""Replies that a scenario brings are said by the real server too."""

from dataclasses import replace

from cachesim.lab.real.llama_cpp.calls import call_for
from cachesim.lab.real.llama_cpp.workload import hurdle, in_one_call
from cachesim.scenario.format import FORMAT, Chat, Model, Scenario, Server, Step, Turn

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
