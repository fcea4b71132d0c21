"""The lessons are run, hold no typed-in number, fit a terminal, and their exercises are marked."""

import ast
import base64
import io
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from cachesim.errors import ContractError, InputError
from cachesim.learn import (
    Lesson,
    execute,
    is_right,
    lesson,
    lessons,
    mark,
    page,
    questions,
    terminal,
)
from cachesim.learn.drawing import Boxes, Control, Drawn
from cachesim.learn.lesson import NUMBERS, SAME, parsed
from cachesim.play import run_scenario
from cachesim.report.consoles import plain_text
from cachesim.scenario.labels import SOURCE
from cachesim.scenario.shipped import shipped_files
from tests.answers import OTHER_ANSWERS, SAME_ANSWERS

ORDINALS: Final = [each.number for each in lessons()]

MAY_STAND: Final = re.compile(
    r"\{\{.*?\}\}"  # computed
    r"|#\d+"  # an upstream issue
    r"|b\d{4,5}|\d+\.\d+\.\d+|[0-9a-f]{9}"  # a release
    r"|`(cachesim [^`]*|[^`\s]*[-@+][^`\s]*)`"  # a command or a name
    r"|\bp[01]\b|\[0, |^\d+\. ",  # names, and marks of lists
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture(params=lessons(), ids=lambda each: each.file)
def one(request: pytest.FixtureRequest) -> Lesson:
    found: Lesson = request.param
    return found


def sentences(chosen: Lesson) -> list[str]:
    parts = [
        *chosen.parts,
        *(part for exercise in chosen.exercises for part in exercise.explanation),
    ]
    return [part.text for part in parts if part.kind in {"prose", "heading"}]


def blocks(chosen: Lesson) -> list[str]:
    inner = [
        (*exercise.question, exercise.answer, *exercise.explanation)
        for exercise in chosen.exercises
    ]
    parts = [*chosen.parts, *(part for parts in inner for part in parts)]
    return [part.text for part in parts if part.kind in {"code", "answer"}]


def test_there_are_thirteen_and_their_files_are_numbered() -> None:
    assert list(range(1, 14)) == ORDINALS


def typed_in(text: str) -> bool:
    """True if a sentence holds a number that no code computed."""
    return re.search(r"\d", MAY_STAND.sub("", text)) is not None


def test_every_number_in_a_sentence_is_computed(one: Lesson) -> None:
    assert [text for text in sentences(one) if typed_in(text)] == []


@pytest.mark.parametrize(
    ("text", "is_typed_in"),
    [
        ("All 14 letters are cached.", True),
        ("Now it is `2.8564`.", True),
        ("All {{ len(text) }} letters, as in llama.cpp #20225 and b11549.", False),
        ("- one\n2. two, at 3", True),
    ],
)
def test_a_typed_in_number_is_found(text: str, *, is_typed_in: bool) -> None:
    assert is_typed_in == typed_in(text)


def test_code_prints_no_number_that_stands_in_a_text(one: Lesson) -> None:
    words = [
        node.value
        for block in blocks(one)
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

    assert [word for word in words if " " in word and re.search(r"\d", word)] == []


@pytest.mark.sampled(4)
def test_it_prints_something_and_asks_something(one: Lesson) -> None:
    whole = execute(one)

    assert len([part for part in whole.parts if part.output]) >= 3
    assert 2 <= len(whole.exercises)
    assert questions(whole) >= 3


def test_it_draws_asks_and_lets_a_number_be_changed(one: Lesson) -> None:
    whole = execute(one)
    kinds = Counter(part.source.kind for part in whole.parts)

    assert kinds["picture"] >= 2
    assert kinds["control"] >= 1
    assert kinds["question"] >= 2
    for control in (part.shown for part in whole.parts if part.source.kind == "control"):
        assert isinstance(control, Control)
        assert len({said for _, said, _ in control.shown}) > 1, "it changes nothing"


def test_a_question_says_neither_its_answer_nor_a_number(one: Lesson) -> None:
    for part in execute(one).parts:
        if part.question is not None:
            assert not re.search(r"\d", part.question.text + part.question.hint), part.question
            assert part.question.hint


@pytest.mark.parametrize(
    "text",
    [
        "```question\nHow many?\n= 1\n```",
        "```question\nHow many?\n```\n\n```python\na = 1\n```",
        "```python picture\na = 1\n```",
        "```python control\ncontrol = 1\n```",
    ],
)
def test_a_question_without_its_run_and_a_picture_of_nothing_are_refused(text: str) -> None:
    exercise = "## Predict, run, explain\n\n### E\n\n```python answer\nanswer = 1\n```"
    chosen = parsed(f"# T\n\nAbout.\n\n{text}\n\n{exercise}", number=1, file="x")

    with pytest.raises(ContractError):
        execute(chosen)


def test_the_page_folds_away_what_follows_a_question() -> None:
    text = page(execute(lesson(5)))
    before, _, after = text.partition('<form class="ask" data-answers="[&quot;WRONG&quot;]">')

    assert "restored from 1[0..0]" not in before
    assert '<details class="reveal">' in after[: after.index("abcdefxyz          9       1")]
    assert text.count("<details") == text.count("</details>")


def test_a_picture_in_the_terminal_marks_what_is_wrong() -> None:
    shown = [part.shown for part in execute(lesson(5)).parts if part.source.kind == "picture"]
    wrong = shown[-1] if isinstance(shown[-1], Drawn) else None

    texts = [each.text() for each in shown if isinstance(each, Drawn)]
    assert wrong is not None
    assert any("    hbcdefxyz\n    ^^^^^^^^^" in text for text in texts)


def test_it_names_the_reports_it_explains(one: Lesson) -> None:
    at = [i for i, part in enumerate(one.parts) if part.text == "## Where it happened"]

    assert 1 == len(at)
    assert re.search(r"#\d+", one.parts[at[0] + 1].text)


def test_names_of_scenarios_exist(one: Lesson) -> None:
    known = {path.stem for path in shipped_files()}
    everything = " ".join([*sentences(one), *blocks(one)])
    named = re.findall(r"cachesim (?:run|explain) ([\w.-]+)", everything)

    assert [name for name in named if name not in known] == []


def test_told_in_a_terminal_no_line_is_wider_than_80(one: Lesson) -> None:
    whole = execute(one)
    for part in (*whole.parts, *(exercise.run for exercise in whole.exercises)):
        assert max(map(len, part.output.splitlines()), default=0) <= 78
        if part.source.kind in {"code", "answer", "console"}:
            assert max(map(len, part.text.splitlines())) <= 76


def test_plain_in_a_pipe(one: Lesson) -> None:
    pipe = io.StringIO()
    Console(file=pipe, width=80).print(terminal.whole(execute(one)))

    assert "\x1b" not in pipe.getvalue()
    assert "{{" not in pipe.getvalue()


@pytest.mark.thorough
@pytest.mark.sampled(4)
def test_two_tellings_are_alike(one: Lesson) -> None:
    assert page(execute(one)) == page(execute.__wrapped__(one))


def test_its_own_answers_are_right_and_others_are_not(one: Lesson) -> None:
    whole = execute(one)
    answers = [answer for exercise in whole.exercises for answer in exercise.answers]
    changed = ["99" if answer != "99" else "98" for answer in answers]

    assert all(each.is_right for each in mark(whole, answers))
    assert not any(each.is_right for each in mark(whole, changed))
    assert not any(each.is_right for each in mark(whole, []))


def test_answers_that_were_not_given_are_open() -> None:
    marks = mark(execute(lesson(4)), ["8", "8", "6", "Y,", "False"])

    assert [True, False, False, False] == [each.is_right for each in marks]
    assert [False, False, True, True] == [each.is_open for each in marks]


@pytest.mark.parametrize(("said", "answer"), SAME_ANSWERS)
def test_words_for_one_answer_are_the_same(said: str, answer: str) -> None:
    assert is_right(said, answer)


@pytest.mark.parametrize(("said", "answer"), OTHER_ANSWERS)
def test_words_for_two_answers_are_not(said: str, answer: str) -> None:
    assert not is_right(said, answer)


def test_the_page_has_the_same_words_for_an_answer_as_the_terminal() -> None:
    script = (Path(__file__).parents[2] / "docs" / "static" / "lessons.js").read_text()
    (listed,) = re.findall(r"const SAME = \{(.*?)\};", script)
    (numbers,) = re.findall(r'const NUMBERS = "([\w ]+)"', script)

    assert dict(re.findall(r'(\w+): "(\w+)"', listed)) == SAME
    assert tuple(numbers.split()) == NUMBERS


def test_each_exercise_has_fields_and_a_hint_on_its_page(one: Lesson) -> None:
    whole, text = execute(one), page(execute(one))

    assert [] == [exercise.title for exercise in one.exercises if not exercise.hint]
    for exercise in whole.exercises:
        form = text.partition(f"### {exercise.title}\n")[2].partition("</form>")[0]
        assert len(exercise.answers) == form.count("<input")
        assert "Hint: " in form


def test_a_picture_leads_to_its_run_in_the_playground() -> None:
    (first, *_) = re.findall(r'playground/index.html#([\w-]+)"', page(execute(lesson(5))))
    form = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    scenario = tomllib.loads(form["toml"])

    played = run_scenario(scenario, profile=f"{form['engine']}@{form['release']}")

    assert [(14, 0, "same")] == [(x.prompt_tokens, x.cached, x.answer) for x in played.steps]


def test_the_two_texts_of_lesson_1_share_cells_in_picture_and_control() -> None:
    whole = execute(lesson(1))
    boxes = [part.shown for part in whole.parts if isinstance(part.shown, Boxes)]
    (control,) = [part.shown for part in whole.parts if isinstance(part.shown, Control)]

    assert "goodbyeday" == "".join(text for text, tone in boxes[0].rows[1][1] if tone)
    assert 4 == sum(tone == "both" for _, tone in boxes[0].rows[1][1])
    shared = [picture for _, _, picture in control.shown if isinstance(picture, Boxes)]
    assert [0, 2, 4, 6] == [sum(t == "both" for _, t in each.rows[1][1]) for each in shared]


def test_the_capstone_predicts_what_the_second_server_did() -> None:
    whole = execute(lesson(13))

    assert "5" == [part.question.answer for part in whole.parts if part.question][-1]
    assert any("predicted 600  real 600" in part.output for part in whole.parts)


def test_more_answers_than_questions_are_refused() -> None:
    whole = execute(lesson(4))
    with pytest.raises(InputError, match=f"asks for {questions(whole)} answers"):
        mark(whole, ["0"] * (questions(whole) + 1))


def test_lessons_4_and_5_ask_for_the_cached_counts_of_three_requests() -> None:
    for number in (4, 5):
        asked = {exercise.title: exercise.answers for exercise in execute(lesson(number)).exercises}
        assert 3 == len(asked["Three requests"])


def test_a_lesson_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="there is no lesson 14; there are 1, 2"):
        lesson(14)


@pytest.mark.parametrize(
    "text", ["no title", "# Title\n\nabout\n\n## Predict, run, explain\n\n### No answer\n\nwhy\n"]
)
def test_a_lesson_without_its_parts_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        parsed(text, number=1, file="x.md")


def test_an_exercise_must_set_its_answer() -> None:
    text = "# T\n\na\n\n## Predict, run, explain\n\n### E\n\nq\n\n```python answer\nx = 1\n```\n"
    with pytest.raises(ContractError, match="must set `answer`"):
        execute(parsed(text, number=1, file="x.md"))


def test_what_holds_for_all_exercises_stands_before_them_everywhere() -> None:
    sentence = "For all of these you have one slot, a hybrid model, no prompt cache"
    fifth = execute(lesson(5))

    assert sentence in page(fifth)
    assert sentence in plain_text(terminal.whole(fifth))
    assert all("For all of these" not in each.text for e in fifth.exercises for each in e.question)


def test_the_lesson_on_batches_says_on_which_side_the_servers_pad() -> None:
    """On the left a short row's state would begin with padding; here it matches up to its end."""
    file = next(path for path in shipped_files() if path.stem.endswith("padding-in-the-state"))
    run = run_scenario(
        tomllib.loads(file.read_text()), profile="mlx-lm@0.31.3", arithmetic="ring"
    ).to_json()
    first = run["steps"][0]

    assert (
        first["prompt_tokens"] - 1 == first["explanation"]["fault"]["matches"]
    )  # all but its last
    assert first["explanation"]["fault"]["padding"] > 0
    assert "padded on the right" in page(execute(lesson(8)))


def test_wrong_answers_of_releases_are_confirmed_or_derived(one: Lesson) -> None:
    whole = execute(one)
    parts = (*whole.parts, *(exercise.run for exercise in whole.exercises))

    assert not any(SOURCE in part.output for part in parts)


RULE: Final = re.compile(
    r"pos_(min|max|end|next)\W+(\w+\W+){0,3}(below|above|>|<)|(below|above|>=?|<=?)\W+n_past"
)
"""A server's test written out; what it asks, and with which numbers, is in the event."""


def test_lessons_show_a_servers_rule_as_its_event_says_it(one: Lesson) -> None:
    assert [text for text in sentences(one) if RULE.search(text)] == []


@pytest.mark.thorough
def test_a_lesson_on_its_page_needs_no_package_of_the_terminal() -> None:
    """The browser has numpy and no Rich."""
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "import cachesim.learn.drawing, cachesim.learn.kit\n"
        "import cachesim.learn.server_log\n"
    )

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def needed_of_pictures(chosen: Lesson) -> list[str]:
    """Names that code reads and only a picture sets: the code of a page runs without pictures."""
    set_by: dict[str, str] = {}
    needed = []
    for part in chosen.parts:
        if part.kind in {"code", "picture", "control"}:
            names = [node for node in ast.walk(ast.parse(part.text)) if isinstance(node, ast.Name)]
            own = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            if part.kind == "code":
                needed += [
                    name.id
                    for name in names
                    if name.id not in own and set_by.get(name.id, "code") != "code"
                ]
            set_by = dict.fromkeys(own, part.kind) | set_by
    return needed


def test_code_on_a_page_needs_nothing_that_only_a_picture_sets(one: Lesson) -> None:
    assert [] == needed_of_pictures(one)


def test_code_that_needs_a_picture_is_found() -> None:
    picture = "```python picture\nsize = 4\npicture = 1\n```"
    exercise = "## Predict, run, explain\n\n### E\n\n```python answer\nanswer = 1\n```"
    text = f"# T\n\nAbout.\n\n{picture}\n\n```python\nprint(size)\n```\n\n{exercise}"

    assert ["size"] == needed_of_pictures(parsed(text, number=1, file="x"))
