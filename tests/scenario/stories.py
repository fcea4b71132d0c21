"""Scenarios for tests, as mappings that may be changed freely."""

from typing import Any


def story(**changes: Any) -> dict[str, Any]:
    """A conversation of three steps with the fake server."""
    return {
        "format": 1,
        "name": "three-steps",
        "about": "A conversation.",
        "class": "lost-reuse",
        "source": {"issue": "owner/repository#1", "upstream": "r1"},
        "model": {"preset": "hybrid", "seed": 3},
        "engine": {"name": "fake", "profiles": ["r1", "r2"], "options": {"parallel": 1}},
        "spans": {"S": 20, "a": 5, "b": 6},
        "step": [
            {"name": "A", "prompt": "S a", "predict": 3},
            {"name": "B", "prompt": "S a A.reply b", "reply": [300, 301]},
            {"prompt": [270, 271], "predict": 1, "slot": 0, "cache_prompt": False},
        ],
        "expect": [
            {"profile": "r1", "cached": [0, 27, 0], "answer": ["same", "same", "any"]},
            {"profile": "r2", "cached": [0, 13, 0], "error": "none"},
        ],
    } | changes


STORY_TOML = """\
format = 1
name = "three-steps"
class = "lost-reuse"

[model]
preset = "hybrid"

[engine]
name = "fake"
profiles = ["r1", "r2"]

[engine.options]
parallel = 1

[spans]
S = 20
a = 5
t = "<think>hm</think>"

[[step]]
name = "A"
prompt = "S a"
predict = 3

[[step]]
name = "B"
with_previous = true
messages = [{ role = "user", content = "{S} and {t}" }]

[[step]]
name = "C"
prompt = "S a A.reply"
reply = "a"

[[expect]]
profile = "r1"
cached = [0, "any", "any"]
"""
