"""A client goes away: before its request has a slot, while the prompt is read, while text comes."""

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.model.presets import preset
from cachesim.units import as_tokens

PROFILE = "ik_llama.cpp@8337e4cd3"


def server(profile: str = PROFILE) -> Engine:
    return Engine.create(
        profile, model=preset("dense"), options={"batch_size": 32}, arithmetic="ring"
    )


def ask(engine: Engine, first: int, count: int = 40) -> Ticket:
    return engine.submit(Request(prompt=as_tokens(range(first, first + count)), predict=6))


def reply_of(engine: Engine, ticket: Ticket) -> Reply:
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    return reply


def test_a_request_that_generates_ends_with_what_it_has() -> None:
    engine = server()
    ticket = ask(engine, 300)
    for _ in range(3):
        engine.step()
    engine.cancel(ticket)
    reply = reply_of(engine, ticket)

    assert "cancelled" == reply.error
    assert (0, 40) == (reply.cached, reply.processed)
    assert 0 < len(reply.generated) < 6


def test_a_request_whose_prompt_is_being_read_goes_on() -> None:
    engine = server()
    ticket = ask(engine, 300)
    engine.step()
    engine.cancel(ticket)
    reply = reply_of(engine, ticket)

    assert reply.error is None
    assert 6 == len(reply.generated)


def test_a_request_that_waits_for_the_slot_is_forgotten() -> None:
    engine = server()
    first, second, third = (ask(engine, start) for start in (300, 350, 400))
    engine.step()
    engine.cancel(second)
    fourth = ask(engine, 450)
    engine.cancel(fourth)

    for gone in (second, fourth):
        reply = reply_of(engine, gone)
        assert ("cancelled", None, None) == (reply.error, reply.cached, reply.processed)
    assert [None, None] == [reply_of(engine, each).error for each in (first, third)]


def test_1673_taken_back_ends_the_next_request_where_a_client_closes_too_late() -> None:
    for profile, error in (("d2da6da05-1673", "cancelled"), ("d2da6da05", None)):
        engine = server(f"ik_llama.cpp@{profile}")
        first = ask(engine, 300)
        assert reply_of(engine, first).error is None
        engine.cancel(first)

        assert reply_of(engine, ask(engine, 350)).error == error
        assert reply_of(engine, ask(engine, 400)).error is None
