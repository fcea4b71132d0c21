"""Errors of a file are reported with their line, once, and without those that follow."""

from pathlib import Path

import pytest

from cachesim.errors import ScenarioError
from cachesim.scenario import limits
from cachesim.scenario.files import lines_of, loads
from cachesim.scenario.shipped import load_all, shipped_files

TEXT = """\
format = 1
name = "a"   # not the name = "b"
about = '''
[model]
preset = "none"
'''

[model]
preset = "dense"
[ engine ]
name = "llama.cpp"
profiles = [
  "b9538",  # ]
  "b11549",
]
options.parallel = 1
"spans"."S" = 20

[[step]]
name = "A"
prompt = "S"
[[step]]
name = "B"
messages = [
  { role = "user", content = "x" },
]
  [step.options]
  n_keep = 1
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        loads(text.encode(), name="x.toml")
    return list(caught.value.problems)


def test_every_key_is_found_on_its_line() -> None:
    lines = lines_of(TEXT)

    assert {
        ("format",): 1,
        ("name",): 2,
        ("about",): 3,
        ("model",): 8,
        ("model", "preset"): 9,
        ("engine",): 10,
        ("engine", "name"): 11,
        ("engine", "profiles"): 12,
        ("engine", "options"): 16,
        ("engine", "options", "parallel"): 16,
        ("engine", "spans"): 17,
        ("engine", "spans", "S"): 17,
        ("step", 0): 19,
        ("step", 0, "name"): 20,
        ("step", 0, "prompt"): 21,
        ("step", 1): 22,
        ("step", 1, "name"): 23,
        ("step", 1, "messages"): 24,
        ("step", 1, "options"): 27,
        ("step", 1, "options", "n_keep"): 28,
    } == dict(lines)


def test_shipped_files_have_a_line_for_every_step() -> None:
    for path in shipped_files():
        text = path.read_text()
        lines = lines_of(text)
        steps = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("[[step]]")]

        assert steps == [
            line for place, line in lines.items() if place[0] == "step" and len(place) == 2
        ]


def test_problems_are_told_with_their_lines_in_the_order_of_the_file() -> None:
    text = TEXT.replace('"dense"', '"dnese"').replace(
        "n_keep = 1", "n_keep = 1\n[[step]]\nname = 7"
    )

    assert [
        "x.toml:9: model.preset: there is no preset 'dnese'; did you mean 'dense'?",
        "x.toml:17: engine.spans: unknown key 'spans'; did you mean 'options'?",
        "x.toml:21: step[0].prompt: there is no span 'S'",
        "x.toml:30: step[2].name: must be a string, found an integer: 7",
    ] == [problem.removesuffix("; did you mean 'S'?") for problem in problems(text)][:4]


STORY = """\
format = 1
name = "x"
[model]
preset = "dense"
[engine]
name = "llama.cpp"
profiles = ["b9538"]
[spans]
S = 20
T = 30
[[step]]
name = "A"
prompt = "S"
predict = 4
[[step]]
name = "B"
prompt = "S A.reply T"
"""


PROMPT = "x.toml:17: step[1].prompt: "
ROLE = "x.toml:13: step[0].messages[0].role: "
LAST = '"S A.reply T"'
DENSE = 'preset = "dense"'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("S = 20", "S = true", ["x.toml:9: spans.S: must be a length, a text or a list"]),
        ("S = 20", "S = -1\nU = 1.5", ["x.toml:9: spans.S: must lie", "x.toml:10: spans.U: must"]),
        (LAST, '"S[:50]"', [f"{PROMPT}'S[:50]' reaches beyond the 20 tokens of 'S'"]),
        (LAST, '"S[5:2]"', [f"{PROMPT}'S[5:2]' is empty: 5 is not below 2"]),
        (LAST, '"S[25:]"', [f"{PROMPT}'S[25:]' reaches beyond the 20 tokens of 'S'"]),
        (LAST, '"A.reply[:5]"', [f"{PROMPT}'A.reply[:5]' reaches beyond the 4 tokens"]),
        ('prompt = "S"', 'messages = [{ content = "hi" }]',
         [f'{ROLE}missing; write role = "user"']),
        ('prompt = "S"', 'messages = [{ role = "robot", content = "hi" }]',
         [f"{ROLE}must be one of system, developer, user, assistant, tool"]),
        (DENSE, f"{DENSE}\nwindow = 16",
         ["x.toml:5: model.window: has no meaning: preset 'dense' has no layer with a window"]),
        ("predict = 4", "drafts = [[300, 301]]",
         ["x.toml:14: step[0].drafts: have no meaning: no companion proposes them"]),
        ("predict = 4", 'options = { n_keeep = 4, n_keep = "a" }',
         ["x.toml:14: step[0].options.n_keeep: llama.cpp@b9538 has no request field 'n_keeep'",
          "x.toml:14: step[0].options.n_keep: request field 'n_keep' is 'a'; write"]),
        ('prompt = "S"\npredict = 4', 'do = "set-lora"\n[step.options]\nlora = []\nscale = 1',
         ["x.toml:16: step[0].options.scale: has no meaning for set-lora", "x.toml:19: step[1]"]),
        ("format = 1", "format = 2", ["x.toml:1: format: must be 1, found an integer: 2"]),
        ('profiles = ["b9538"]', 'profiles = ["b9538", 7]',
         ["x.toml:7: engine.profiles[1]: must be a string"]),
    ],
)  # fmt: skip
def test_only_what_is_wrong_is_told(old: str, new: str, expected: list[str]) -> None:
    found = problems(STORY.replace(old, new, 1))

    assert len(expected) == len(found), found
    for wanted, line in zip(expected, found, strict=True):
        assert line.startswith(wanted)


@pytest.mark.parametrize("piece", ["S[:20]", "S[5:]", "S[19:20]", "A.reply[:4]", "A.reply[1:]"])
def test_pieces_that_are_there_are_right(piece: str) -> None:
    loads(STORY.replace('"S A.reply T"', f'"{piece}"').encode(), name="x")


@pytest.mark.parametrize(
    "options", ["ctx_size = 260000", "cache_ram = 8192", "slot_prompt_similarity = 0.5"]
)
def test_what_reports_use_is_within_the_limits(options: str) -> None:
    loads(STORY.replace("[spans]", f"[engine.options]\n{options}\n[spans]").encode(), name="x")


def test_many_errors_are_told_as_a_few_and_a_number() -> None:
    text = STORY + "".join(f"[[step]]\nprompt = 'no{i}'\n" for i in range(600))

    found = problems(text)

    assert limits.PROBLEMS + 1 == len(found)
    assert "x.toml: and 560 more problems" == found[-1]


def test_a_folder_without_scenarios_says_so(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a folder without scenarios"):
        load_all([str(tmp_path)])
