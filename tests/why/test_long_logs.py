"""Long logs: what is tried of each request, and where a replay that cannot be the best one ends."""

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from random import Random
from typing import Any

import pytest

from cachesim.engines.llamacpp.vocabulary.events import SlotChosenBySimilarity
from cachesim.engines.tokens import Rope
from cachesim.model.presets import preset
from cachesim.why.explain.whole import LONG, UserSettings, read_files, replays_of
from cachesim.why.infer.settings import settings_of
from cachesim.why.read.observed import ServerLog
from cachesim.why.rebuild.from_log import Rebuilder
from cachesim.why.replay.player import Player, ReplayRequest
from cachesim.why.replay.replayed import Hints

HEAD = """\
srv    load_model: loading model '/models/a.gguf'
srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'
"""


def log_of(requests: int, *, conversations: int = 12, seed: int = 1) -> Iterator[str]:
    """The lines of October's server at its default verbosity: chats that take turns."""
    chance, chats = Random(seed), dict[int, Rope]()
    server = Player("llama.cpp@b11549", preset("dense"), {"parallel": 2, "ctx_size": 16_384})
    yield HEAD
    for number in range(requests):
        chat = chance.randrange(conversations)
        prompt = chats.get(chat, Rope.of(1, 60))[:]
        if len(prompt) > 2_000:
            prompt = Rope.of(1, 60)
        prompt += Rope.of(2 * number + 2, chance.randint(5, 90))
        reply = Rope.of(2 * number + 3, chance.randint(2, 40))
        server.launch(ReplayRequest(number, prompt, reply))
        events = [e for e in server.engine.events if isinstance(e, SlotChosenBySimilarity)]
        done = server.run_until(number)
        at = f"id  {done.slot} | task"
        how = "LRU, t_last = 1"
        if events:
            sim, keep = events[0].similarity, events[0].f_keep
            how = f"LCP similarity, f_sim_best = {sim:.3f} (> 0.100 thold), f_keep = {keep:.3f}"
        yield f"slot get_availabl: {at} -1 | selected slot by {how}\n"
        yield f"slot launch_slot_: {at} {number} | processing task, is_child = 0\n"
        read = f"prompt eval time = 1.0 ms / {done.processed} tokens"
        yield f"slot print_timing: {at} {number} | {read}\n"
        yield f"slot print_timing: {at} {number} | eval time = 1.0 ms / {len(reply)} tokens\n"
        prompt += reply
        held = len(prompt) - 1
        yield f"slot release: {at} {number} | stop processing: n_tokens = {held}, truncated = 0\n"
        chats[chat] = prompt


def server_of(text: str) -> ServerLog:
    (server,) = read_files([("server.log", BytesIO(text.encode()))]).servers
    return server


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a server was copied, and how many requests were launched."""
    found: Counter[str] = Counter()
    for name in ("fork", "launch"):
        was = getattr(Player, name)

        def do(self: Player, *given: object, was: Any = was, name: str = name) -> object:
            found[name] += 1
            return was(self, *given)

        monkeypatch.setattr(Player, name, do)
    return found


def test_a_server_is_copied_only_for_prompts_of_which_it_can_reuse_as_much(
    counted: Counter[str],
) -> None:
    log = server_of("".join(log_of(80)))
    counted.clear()
    replay = Rebuilder(log, settings_of(log), Hints()).play()

    assert replay.agreeing >= 72
    assert counted["fork"] <= 80


def test_a_copy_of_a_server_shares_nothing_that_its_requests_change() -> None:
    log = server_of("".join(log_of(40)))
    rebuilder = Rebuilder(log, settings_of(log), Hints())
    rebuilder.play()
    server = rebuilder.player
    before = [rope.copy() for ropes in server.held() for rope in ropes]
    twin = server.fork()
    for number, rope in enumerate(before, 1_000):
        longer = rope[:]
        longer += Rope.of(9_999, 50)
        twin.play(ReplayRequest(number, longer, Rope.of(10_000 + number, 9)))

    assert before == [rope for ropes in server.held() for rope in ropes]
    server.engine.check_integrity()


def test_a_replay_ends_where_too_few_requests_can_agree() -> None:
    log = server_of("".join(log_of(80)))
    whole = Rebuilder(log, settings_of(log), Hints()).play()
    most = Rebuilder(log, settings_of(log), Hints()).play(goal=whole.agreeing)
    ended = Rebuilder(log, settings_of(log), Hints()).play(goal=whole.agreeing + 1)

    assert whole.agreeing < len(whole.requests) == 80 == len(most.requests)
    assert most.agreeing == whole.agreeing
    assert len(ended.requests) < 80


@pytest.mark.thorough
@pytest.mark.nightly
def test_of_a_long_log_the_first_requests_decide_on_model_and_release(
    counted: Counter[str],
) -> None:
    text = "".join(log_of(LONG + 1))
    counted.clear()
    (replay,) = replays_of(read_files([("server.log", BytesIO(text.encode()))]), UserSettings())

    assert LONG + 1 == len(replay.requests)
    assert counted["launch"] <= 12 * LONG
