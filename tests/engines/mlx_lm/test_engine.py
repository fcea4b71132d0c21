"""The server from outside: requests, options, refusals, replies, events."""

from typing import Any

import pytest
from chat_kit import ATTN, HYB, Chat, system, user

from cachesim.engines.base import Engine, Message, Request
from cachesim.engines.byte_tokenizer import ByteTokenizer
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.events import (
    ModelCalled,
    RequestAdmitted,
    RequestFinished,
    WorkerDied,
)
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.errors import ContractError, OptionError, ProfileError, TokenError
from cachesim.model.presets import tiny
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import cold_logits

PROMPT = as_tokens(list(range(300, 320)))


def server(release: str = "0.32.2", **options: Any) -> MlxLm:
    engine = Engine.create(f"mlx-lm@{release}", model=ATTN, options=options, arithmetic="ring")
    assert isinstance(engine, MlxLm)
    return engine


def ask(engine: Engine, prompt: Tokens, **more: Any) -> Any:
    ticket = engine.submit(Request(prompt=prompt, **({"predict": 4} | more)))
    engine.run()
    return engine.reply(ticket)


@pytest.mark.parametrize("release", FAMILY.names())
def test_every_release_answers_as_a_cold_run_does(release: str) -> None:
    engine = server(release)
    first = ask(engine, PROMPT)
    second = ask(engine, (*PROMPT, *first.generated, *PROMPT))

    assert (20, 4, 0) == (len(first.prompt), len(first.generated), first.cached)
    assert second.cached >= 20
    for reply in (first, second):
        tokens = reply.prompt + reply.generated[:-1]
        cold = cold_logits(
            ATTN, tokens, rows=range(len(reply.prompt) - 1, len(tokens)), arithmetic="ring"
        )
        assert (cold == reply.logits).all()
        assert len(reply.prompt) == reply.cached + reply.processed


def test_a_reply_is_there_when_it_is_finished_and_not_before() -> None:
    engine = server()
    ticket = engine.submit(Request(prompt=PROMPT, predict=4))

    assert engine.reply(ticket) is None
    while engine.step():
        pass
    assert engine.reply(ticket) is not None
    assert not engine.step()


def test_forced_replies_end_where_they_end() -> None:
    engine = server()
    forced = as_tokens([400, 260, 401])

    assert forced == ask(engine, PROMPT, reply=forced, predict=-1).generated
    assert forced[:2] == ask(engine, PROMPT, reply=forced, predict=2).generated
    assert forced == ask(engine, PROMPT, reply=forced, predict=9).generated


def test_a_forced_reply_that_ends_with_the_end_mark_is_said_to_stop() -> None:
    for reply, reason in (([400, 260], "stop"), ([400, 401], "length")):
        engine = server()
        ask(engine, PROMPT, reply=as_tokens(reply))
        finished = [each for each in engine.events if isinstance(each, RequestFinished)]
        assert [reason] == [each.reason for each in finished]


@pytest.mark.parametrize(
    "options",
    [
        {"ctx_size": 4096},
        {"prompt_concurrency": 0},
        {"prefill_step_size": "8"},
        {"prompt_cache_size": -1},
        {"tokenizer": "letters"},
        {"chat_template": "think"},
        {"tokenizer": "words", "chat_template": "strip-reasoning"},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        server(**options)


def test_an_option_of_a_later_release_is_refused_with_its_release() -> None:
    with pytest.raises(OptionError, match="after-906"):
        server("0.30.7", prompt_cache_size=4)
    assert 4 == server("after-906", prompt_cache_size=4).options.prompt_cache_size


@pytest.mark.parametrize("name", ["mlx-lm@0.1", "mlx-lm@0.32.2+7"])
def test_releases_and_patches_that_do_not_exist_are_refused(name: str) -> None:
    with pytest.raises(ProfileError):
        Engine.create(name, model=ATTN)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request(prompt=()), TokenError),
        (Request(prompt=as_tokens([300, 512])), TokenError),
        (Request(prompt=PROMPT, slot=1), OptionError),
        (Request(prompt=PROMPT, cache_prompt=False), OptionError),
        (Request(prompt=PROMPT, completions=2), OptionError),
        (Request(prompt=PROMPT, drafts=((),)), OptionError),
        (Request(prompt=PROMPT, options={"n_keep": 1}), OptionError),
        (Request(prompt=PROMPT, messages=(Message(role="user", content="hi"),)), TokenError),
    ],
)
def test_requests_that_the_server_does_not_know_are_refused(
    request_: Request, error: type[Exception]
) -> None:
    engine = server()
    with pytest.raises(error):
        engine.submit(request_)
    assert ask(engine, PROMPT).error is None


def test_a_request_for_no_token_is_refused_by_the_servers_own_word() -> None:
    engine = server()
    reply = ask(engine, PROMPT, predict=0)

    assert ("ValueError", "max_tokens must be at least 1") == (reply.error, reply.message)
    assert (None, None) == (reply.cached, reply.processed)


def test_messages_are_rendered_by_the_servers_own_template() -> None:
    messages = (Message(role="system", content="Be kind."), Message(role="user", content="Hi"))
    engine = server(chat_template="strip-reasoning")
    reply = ask(engine, (), messages=messages)

    assert ByteTokenizer("strip-reasoning").apply_chat_template(messages) == reply.prompt


def test_a_tokenizer_of_ones_own_is_taken() -> None:
    engine = server(tokenizer=ByteTokenizer("chatml"))

    assert ask(engine, (), messages=(Message(role="user", content="Hi"),)).error is None


def test_what_was_equal_and_why_less_was_reused() -> None:
    chat = Chat("0.32.2", HYB)
    chat.ask(system(), user(5, 20))
    ticket = chat.submit(system(), user(3, 20), reply=[100])
    chat.engine.run()
    reply = chat.engine.reply(ticket)
    assert reply is not None

    assert (21, 18, "a stored prompt that is not used") == (
        reply.equal,
        reply.cached,
        reply.equal_with,
    )
    assert [("not-trimmable", 21, 18)] == [(e.rule, e.before, e.after) for e in reply.losses]


def test_a_request_still_at_work_cannot_be_reused() -> None:
    chat = Chat("0.32.2", HYB)
    tickets = [chat.submit(system(), user(3, first), reply=[100]) for first in (20, 30)]
    chat.engine.run()
    reply = chat.engine.reply(tickets[1])
    assert reply is not None

    assert [("still-at-work", 18, 0)] == [(e.rule, e.before, e.after) for e in reply.losses]
    assert "request 0, still running" == reply.equal_with


def test_a_hit_that_is_reported_may_be_unsound() -> None:
    chat = Chat("0.31.1-main+1006.2", HYB)
    chat.ask(system(), user(5, 20))
    chat.together([[system(), user(4, 40)], [system(), user(12, 50)]])
    chat.ask(system(9), user(4, 80))
    admitted = chat.events(RequestAdmitted)

    assert [(10, False)] == [(each.cached, each.sound) for each in admitted]


def test_older_servers_report_nothing() -> None:
    for release, expected in (("0.30.7", [None]), ("0.31.1", [0])):
        engine = server(release)
        ask(engine, PROMPT)
        admitted = [each for each in engine.events if isinstance(each, RequestAdmitted)]
        assert expected == [each.reported for each in admitted]


@pytest.mark.parametrize(
    ("release", "error"), [("0.31.3", "no answer"), ("0.32.2", "generation thread died")]
)
def test_nobody_is_served_by_a_dead_worker(release: str, error: str) -> None:
    engine = server(release)
    first = ask(engine, PROMPT, reply=as_tokens([400, 401]))
    fatal = ask(engine, (*first.prompt, *first.generated))
    after = ask(engine, as_tokens([500, 501]))

    assert fatal.error.startswith("worker died: ")
    assert error == after.error
    assert 1 == sum(isinstance(each, WorkerDied) for each in engine.events)
    assert engine.snapshot()["worker"] == fatal.error.removeprefix("worker died: ")


def test_a_seeded_request_waits_until_the_batch_is_empty() -> None:
    chat = Chat("0.32.2", ATTN)
    requests = [
        chat.engine.submit(
            Request(prompt=PROMPT, predict=3, options={"seed": 1} if index == 1 else None)
        )
        for index in range(3)
    ]
    chat.engine.run()
    admitted = [each for each in chat.engine.events if isinstance(each, RequestAdmitted)]

    assert [0, 1, 2] == [each.task for each in admitted]
    assert ["batch", "single", "batch"] == [each.path for each in admitted]
    assert all(chat.engine.reply(each) is not None for each in requests)


def test_a_client_that_goes_before_its_turn_is_answered_and_dropped() -> None:
    engine = server()
    ticket = engine.submit(Request(prompt=PROMPT, predict=40))
    engine.cancel(ticket)
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None

    assert len(reply.generated) < 40
    assert [] == engine.snapshot()["at_work"]


def test_what_the_server_holds() -> None:
    chat = Chat("0.32.2", HYB)
    chat.ask(system(), user(5, 20))
    held = chat.engine.snapshot()

    assert [18, 27, 32] == [each["n_tokens"] for each in held["prompt_cache"]]
    assert ["system", "user", "assistant"] == [each["type"] for each in held["prompt_cache"]]
    assert [18 * 32 + 704] == [each["nbytes"] for each in held["prompt_cache"]][:1]
    assert "alive" == held["worker"]


def test_books_that_disagree_are_a_bug_of_ours() -> None:
    engine = server()
    ask(engine, PROMPT)
    engine.check_integrity()
    engine.server.store.cache.order.queues["assistant"].clear()

    with pytest.raises(ContractError):
        engine.check_integrity()


def test_two_runs_give_the_same_events() -> None:
    runs = []
    for _ in range(2):
        chat = Chat("0.31.3", HYB)
        chat.together([[system(), user(4, 20)], [system(), user(9, 30)]])
        runs.append([each.as_dict() for each in chat.engine.events])

    assert runs[0] == runs[1]
    assert any(each["event"] == ModelCalled.name() for each in runs[0])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("temp", "sampling changes nothing"),
        ("port", "the machine"),
        ("max_kv_size", "only mlx_lm.generate"),
    ],
)
def test_a_flag_of_the_real_server_is_not_denied(name: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Engine.create("mlx-lm@0.32.2", model=tiny("dense"), options={name: 1})
