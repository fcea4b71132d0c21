"""The bench of the lessons: letters, a memory to poke at, a server to ask."""

import pytest

from cachesim.learn import kit


def test_letters_come_back_and_other_tokens_are_dots() -> None:
    assert "the cat!" == kit.letters(kit.tokens("the cat!"))
    assert "a." == kit.letters((*kit.tokens("a"), 1))


@pytest.mark.parametrize(
    "model", ["dense", "swa", "recurrent", "hybrid", "hybrid-delta", kit.SMALL]
)
def test_a_memory_that_was_read_in_pieces_gives_the_cold_answer(model: str) -> None:
    memory = kit.Memory(model, parts=8)
    memory.read("abc")

    assert kit.same(memory.read("de"), kit.cold(model, "abcde"))
    assert kit.apart(memory.read("f"), kit.cold(model, "abcdef")) == 0


def test_the_small_layer_has_two_numbers() -> None:
    memory = kit.Memory(kit.SMALL)
    memory.read("a")

    assert (2,) == memory.state.shape


def test_a_memory_without_a_state_says_so() -> None:
    with pytest.raises(TypeError, match="no recurrent state"):
        _ = kit.Memory("dense").state


def test_a_text_that_does_not_fit_is_refused() -> None:
    memory = kit.Memory("dense")
    memory.read("abc")
    with pytest.raises(ValueError, match="decode answers -1: sequence 0 has last position 2"):
        memory.read("d", at=7)
    with pytest.raises(ValueError, match="decode answers 1: no place"):
        memory.read("defghijklmno")


def test_cells_show_whose_letters_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    memory = kit.Memory("dense", cells=6)
    memory.read("ab")
    memory.seq_cp(0, 1)
    memory.read("c d", seq=1)
    memory.seq_rm(1, 3)
    memory.show()

    assert capsys.readouterr().out.splitlines() == [
        "cell           0   1   2   3   4   5",
        "position       0   1   2",
        "token          a   b   c",
        "owners        01  01   1",
    ]
    assert 3 == memory.used


def test_a_server_answers_letters(capsys: pytest.CaptureFixture[str]) -> None:
    replies = kit.serve("llama.cpp@b11549", "dense", "abc", {"prompt": "abd", "reply": "xy"})
    kit.table(replies, entries=True)

    assert [(0, 3), (2, 1)] == [(reply.cached, reply.processed) for reply in replies]
    assert "abd            3       2  matches" in capsys.readouterr().out
    assert 1 == len(replies[0].seen("slot-released"))


def test_a_chat_is_played_in_turns() -> None:
    first, second = kit.chat("mlx-lm@0.32.2", "dense", ("s", "u"), ("s", "u", "~", "v"))

    assert first.tokens < second.tokens
    assert first.tokens <= second.cached
    assert "s | u | ~ | v" == second.prompt
