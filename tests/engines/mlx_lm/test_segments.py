"""Positions, counted from the end of a prompt, at which #911 and #1006 keep a state."""

from cache_kit import system, tool, user

from cachesim.engines.base import Message
from cachesim.engines.family import Profile
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.server.request import (
    Checkpoint,
    prompt_checkpoint,
)
from cachesim.engines.mlx_lm.server.word_tokenizer import WordTokenizer

PLAIN, THINKS = WordTokenizer("chatml"), WordTokenizer("think")
S = system()


def checkpoint(
    release: str, tokenizer: WordTokenizer, *messages: Message, trimmable: bool = False
) -> Checkpoint:
    base, _, patch = release.partition("+")
    rules = FAMILY.rules(Profile.parse(f"mlx-lm@{base}+{patch}".rstrip("+"))).server
    prompt = tokenizer.apply_chat_template(messages)
    return prompt_checkpoint(rules, tokenizer, messages, prompt, trimmable=trimmable)


def test_where_911_keeps_a_state() -> None:
    last_is_tool = checkpoint("0.31.1", PLAIN, S, user(5, 20), tool(3, 30))

    assert Checkpoint(store=True, position=-1) == checkpoint("0.31.1", PLAIN, S, user(5, 20))
    assert Checkpoint(store=True, position=-3) == checkpoint("0.31.1", THINKS, S, user(5, 20))
    assert Checkpoint(store=False, position=-1) == last_is_tool


def test_where_1006_keeps_a_state() -> None:
    release = "0.31.1-main+1006"
    of_trimmable = checkpoint(release, PLAIN, S, user(5, 20), trimmable=True)

    assert Checkpoint(store=True, position=-10) == checkpoint(release, PLAIN, S, user(5, 20))
    assert Checkpoint(store=True, position=-1) == checkpoint(release, PLAIN, user(5, 20))
    assert Checkpoint(store=True, position=-1) == of_trimmable
