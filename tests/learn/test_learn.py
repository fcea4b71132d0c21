"""`cachesim learn`: listing, telling and marking, in a pipe and at a terminal."""

import io

from cachesim.cli.main import main
from cachesim.learn import execute, is_right, lesson, lessons
from tests.fixtures import Capture, Patch, complaint, output


class Terminal(io.StringIO):
    """Standard input that is somebody typing."""

    def isatty(self) -> bool:
        return True


def answers(number: int) -> list[str]:
    return [answer for exercise in execute(lesson(number)).exercises for answer in exercise.answers]


def test_without_a_number_all_lessons_are_listed(capsys: Capture) -> None:
    listed = output(capsys, ["learn"])

    assert all(each.title in listed for each in lessons())
    assert max(map(len, listed.splitlines())) <= 80


def test_a_lesson_is_told_without_its_answers(capsys: Capture) -> None:
    text = output(capsys, ["learn", "4"])

    assert "4. Recurrent state (Mamba, gated delta net): why it cannot be" in text
    assert "after f the state is 2.8564" in text
    assert "Exercise 3: Three requests" in text
    assert "The second one only adds letters." not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_at_a_terminal_it_waits_before_each_run(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("?\n10\n7\n6\nwrong\nfirst\n"))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert 0 == main(["learn", "5"])
    said = capsys.readouterr()
    asked = " ".join(said.err.split())
    assert "It is taken before the last four letters are read" in asked
    assert "10: yes" in said.out
    assert "Not yet. Hint: It matches `the cat sat `." in asked
    assert "6: the run says 10" in said.out
    assert "wrong: yes" in said.out
    assert "3 of 4 predicted" in said.out


def test_with_all_nothing_is_asked(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(""))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert 0 == main(["learn", "5", "--all"])
    said = capsys.readouterr()
    assert "your answer" not in said.err
    assert "hbcdefxyz" in said.out


def test_right_answers_are_0(capsys: Capture) -> None:
    assert "5 of 5 exercises right" in output(capsys, ["learn", "5", "--check", *answers(5)])


def test_a_wrong_answer_is_1_and_is_explained(capsys: Capture) -> None:
    text = output(capsys, ["learn", "5", "--check", "7", "7", "7"], 1)

    assert "Exercise 1: One checkpoint: wrong, you answered 7, 7, 7; it is 7, 6, 6" in text
    assert "Hint: The server stops four letters before the end" in text
    assert "Four letters are left for the last piece." in text
    assert "Exercise 2: Three requests: not answered" in text
    assert "0 of 5 exercises right" in text


def test_answers_may_come_from_a_pipe(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers(3))))

    assert "exercises right" in output(capsys, ["learn", "3", "--check"])


def test_at_a_terminal_each_question_is_asked(capsys: Capture, monkeypatch: Patch) -> None:
    lines = ["8 8 7", "8 8 6", "yes no no no", "yes, no, yes", "0 12 0", ""]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(lines)))

    assert 1 == main(["learn", "4", "--check"])
    said = capsys.readouterr()
    assert "3 of 4 exercises right" in said.out
    assert "3 answers wanted, not 4" in said.err
    assert "Not yet. Hint: Halve the old state" in said.err
    assert "The same with attention: not answered" in said.out


def test_a_question_mark_prints_the_hint_and_spends_no_try(
    capsys: Capture, monkeypatch: Patch
) -> None:
    right = [" ".join(exercise.answers) for exercise in execute(lesson(4)).exercises]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(["?", "8", *right])))

    assert 0 == main(["learn", "4", "--check"])
    said = capsys.readouterr().err
    assert "Halve the old state" in said
    assert "3 answers wanted, not 1" in said


def test_answers_may_stand_between_commas() -> None:
    given = [",".join(exercise.answers) for exercise in execute(lesson(3)).exercises]

    assert 0 == main(["learn", "3", "--check", *given])


def test_a_flag_may_be_answered_as_it_is_typed() -> None:
    assert is_right("--ctx-checkpoints", "ctx_checkpoints")
    assert not is_right("--cache-ram", "ctx_checkpoints")


def test_an_empty_pipe_has_no_answers(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    assert "there are no answers to mark" in complaint(capsys, ["learn", "4", "--check"])
