"""Proposals that never merged, on the server: what they report, and what their states hold."""

import pytest
from chat_kit import ATTN, HYB, PLAIN_REPLY, Chat, said, system, user

from cachesim.engines.mlx_lm.events import Insertion, SnapshotTaken
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import SnapshotRules
from cachesim.engines.profile import Profile

S = system()
TURNS = [
    [S, user(5, 20)],
    [S, user(5, 20), said(), user(7, 30)],
    [S, user(5, 20), said(), user(7, 30), said(), user(2, 40)],
]
PARALLEL = [[S, user(4, 20)], [S, user(12, 30)], [S, user(8, 50)]]


def states(chat: Chat) -> list[tuple[int, int, int]]:
    """Key length, tokens in the recurrent state, attention rows of every insertion."""
    found = []
    for each in chat.engine.events:
        if isinstance(each, Insertion):
            held = each.held
            found.append(
                (
                    int(each.length),
                    len(held["recurrent"]) if "recurrent" in held else int(each.length),
                    len(held["attention"]) if "attention" in held else int(each.length),
                )
            )
    return found


def test_923_keeps_more_in_its_states_than_their_keys_say() -> None:
    chat = Chat("after-906+923", HYB)
    outcomes = [chat.ask(*each) for each in TURNS]

    assert [(0, True), (25, False), (45, False)] == [(each.cached, each.same) for each in outcomes]
    assert [(25, 32, 32), (45, 59, 59), (60, 81, 81)] == states(chat)


@pytest.mark.parametrize(
    ("patches", "expected"),
    [
        ("923", (0, True)),
        ("923+929.2", (0, True)),
        ("923+929.3", (0, True)),
        ("923+929.1", (15, False)),
        ("929", (15, False)),
    ],
)
def test_a_branch_after_three_turns(patches: str, expected: tuple[int, bool]) -> None:
    chat = Chat(f"after-906+{patches}", HYB)
    for each in TURNS:
        chat.ask(*each)
    outcome = chat.ask(S, user(4, 80))

    assert expected == (outcome.cached, outcome.same)


@pytest.mark.parametrize(
    ("patches", "expected"),
    [("923+929.1", (32, 32)), ("929", (32, 22)), ("923+929.1+929.3", (32, 22))],
)
def test_snapshots_hold_states_that_the_model_never_had(
    patches: str, expected: tuple[int, int]
) -> None:
    chat = Chat(f"after-906+{patches}", HYB)
    chat.ask(*TURNS[0])
    taken = chat.events(SnapshotTaken)

    assert [(15, False)] == [(each.length, each.state_is_key) for each in taken]
    assert expected == (len(taken[0].held["recurrent"]), len(taken[0].held["attention"]))


def test_one_message_leaves_no_snapshot_with_either() -> None:
    for patches in ("923", "923+929.2", "929"):
        chat = Chat(f"after-906+{patches}", HYB)
        chat.ask(user(5, 20))

        assert [10] == chat.stored, patches


def test_two_followers_of_one_conversation_end_the_worker() -> None:
    chat = Chat("after-906+923", HYB)
    chat.ask(*TURNS[0])
    follow = [[*TURNS[0], said(), user(7, 30)], [*TURNS[0], said(), user(7, 40)]]

    assert [25, 25] == [each.cached for each in chat.together(follow)]
    assert "KeyError" == chat.engine.snapshot()["worker"]


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.31.1-main+1006.2", [(10, 18, 10), (14, 18, 14), (18, 18, 18)]),
        ("0.31.1-main+1006", [(18, 18, 18)]),
    ],
)
def test_1006_commit_by_commit(release: str, expected: list[tuple[int, int, int]]) -> None:
    chat = Chat(release, HYB)
    first = chat.ask(S, user(5, 70))
    before = len(states(chat))
    outcomes = chat.together(PARALLEL)

    assert (0, False) == (first.cached, first.same)
    assert [(18, 18, 18), (32, 41, 41)] == states(chat)[:before]
    assert [(18, False)] * 3 == [(each.cached, each.same) for each in outcomes]
    ends = [(31, 55, 47), (35, 55, 51), (39, 55, 55)]
    assert [*expected, *ends] == states(chat)[before:]


def test_1006_in_its_first_commit_dies_of_ragged_tails() -> None:
    chat = Chat("0.31.1-main+1006.1", HYB)
    chat.ask(S, user(5, 70))

    assert ["worker died: ValueError"] * 3 == [each.cached for each in chat.together(PARALLEL)]


def test_1006_helps_with_a_shared_system_prompt_and_1072_does_so_rightly() -> None:
    long = system(120)
    found = {}
    for release in ("0.31.1-main", "0.31.1-main+1006", "0.32.2"):
        chat = Chat(release, HYB)
        asked = [chat.ask(long, user(2, 20 + 2 * i)) for i in range(5)]
        found[release] = [each.cached for each in asked], {each.same for each in asked}

    n = 5 + 120 + 5 + 2 + 3
    cached = [0, 128, 128, 128, 128]
    assert ([0] * 5, {True}) == found["0.31.1-main"]
    assert (cached, {False}) == found["0.31.1-main+1006"]
    assert (cached, {True}) == found["0.32.2"]
    assert 0.94 < 128 / n < 0.95


def test_1006_does_not_reach_the_single_path() -> None:
    chat = Chat("0.31.1-main+1006", HYB)
    chat.ask(S, user(5, 20), seed=1)

    assert [32] == chat.stored
    assert 0 == chat.ask(S, user(4, 40), seed=1).cached


def test_1006_leaves_trimmable_models_as_they_were() -> None:
    conversation = [S, user(5, 20)]
    chats = [Chat(f"0.31.1-main{patch}", ATTN) for patch in ("", "+1006")]
    for chat in chats:
        chat.ask(*conversation)

    assert states(chats[0]) == states(chats[1])


@pytest.mark.parametrize("patch", ["1186", "1253", "1254"])
def test_reuse_of_states_that_cannot_be_cut_is_wrong(patch: str) -> None:
    for release, right in (("0.31.3", True), (f"0.31.3+{patch}", False)):
        chat = Chat(release, HYB)
        chat.ask(S, user(9, 20))
        outcome = chat.ask(S, user(6, 20), reply=PLAIN_REPLY)

        assert right == outcome.same, release


def test_the_mends_of_929_add_up() -> None:
    rules = FAMILY.rules(Profile.parse("mlx-lm@after-906+923+929.1+929.3")).server

    assert SnapshotRules(always_the_last_boundary=True, trims_each_layer_it_can=True) == (
        rules.snapshots
    )
