"""The server from outside: requests, options, refusals, replies, events."""

from typing import Any

import pytest
from chat_kit import ATTN

from cachesim.engines.base import Engine, Message, Request
from cachesim.engines.chat import ByteTokenizer
from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.errors import ContractError, OptionError
from cachesim.units import Tokens, as_tokens

PROMPT = as_tokens(list(range(300, 320)))


def server(release: str = "0.32.2", **options: Any) -> MlxLm:
    engine = Engine.create(f"mlx-lm@{release}", model=ATTN, options=options, arithmetic="ring")
    assert isinstance(engine, MlxLm)
    return engine


def ask(engine: Engine, prompt: Tokens, **more: Any) -> Any:
    ticket = engine.submit(Request(prompt=prompt, **({"predict": 4} | more)))
    engine.run()
    return engine.reply(ticket)


def test_an_option_of_a_later_release_is_refused_with_its_release() -> None:
    with pytest.raises(OptionError, match="after-906"):
        server("0.30.7", prompt_cache_size=4)
    assert 4 == server("after-906", prompt_cache_size=4).options.prompt_cache_size


def test_a_tokenizer_of_ones_own_is_taken() -> None:
    engine = server(tokenizer=ByteTokenizer("chatml"))

    assert ask(engine, (), messages=(Message(role="user", content="Hi"),)).error is None


def test_books_that_disagree_are_a_bug_of_ours() -> None:
    engine = server()
    ask(engine, PROMPT)
    engine.check_integrity()
    engine.server.store.cache.order.queues["assistant"].clear()

    with pytest.raises(ContractError):
        engine.check_integrity()
