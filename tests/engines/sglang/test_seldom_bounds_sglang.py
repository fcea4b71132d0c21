"""Parts of SGLang's port that conversations seldom reach, each on its own."""

import hashlib
import random

import numpy as np

from cachesim.engines.base import Engine, Request
from cachesim.engines.sglang.node import as_key
from cachesim.engines.sglang.pools import Ring, hashes_of
from cachesim.model.presets import tiny
from cachesim.units import as_tokens


def test_of_a_pair_both_tokens_count_in_the_key_of_a_page() -> None:
    """`get_hash_str`: every token as four bytes, after the key of the page before."""
    for last in (3, 4):
        pairs = as_key(np.array([1, 2, last]), bigrams=True)
        plain = np.array([1, 2, 2, last], "<u4").tobytes()
        assert hashlib.sha256(plain).digest() == hashes_of(pairs, None, 3, bigrams=True)[0]
        assert hashlib.sha256(b"x" + plain).digest() == hashes_of(pairs, b"x", 3, bigrams=True)[0]
    tokens = np.array([1, 2, 3])
    whole = np.array([1, 2, 3], "<u4").tobytes()
    assert hashlib.sha256(whole).digest() == hashes_of(tokens, None, 3, bigrams=False)[0]


def test_a_ring_grows_beyond_what_there_was_and_keeps_its_order() -> None:
    """Slots that are freed twice are there twice."""
    for seed in range(40):
        rng, ring = random.Random(seed), Ring(1, 5)
        plain = [1, 2, 3, 4, 5]
        for number in range(30):
            count = rng.randint(0, 4)
            if rng.random() < 0.4 and count <= len(plain):
                assert plain[:count] == ring.take(count).tolist()
                del plain[:count]
            else:
                more = np.arange(100 + number, 100 + number + count)
                ring.put(more)
                plain += more.tolist()
            assert len(plain) == ring.count
        assert plain == ring.take(len(plain)).tolist()


def test_a_client_that_leaves_is_answered_at_once_and_its_slots_are_free() -> None:
    engine = Engine.create("sglang@0.5.23", model=tiny("dense"), options={}, arithmetic="counts")
    ticket = engine.submit(Request(prompt=as_tokens(range(50)), predict=40))
    for _ in range(4):
        engine.step()
    engine.cancel(ticket)
    reply = engine.reply(ticket)
    assert reply is not None
    assert "cancelled" == reply.error
    engine.run()
    assert len(reply.generated) < 40
    again = engine.submit(Request(prompt=as_tokens(range(50)), predict=1))
    engine.run()
    second = engine.reply(again)
    assert second is not None
    assert 49 == second.cached
    engine.cancel(again)
    assert second == engine.reply(again)
