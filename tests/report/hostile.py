"""A scenario whose every text would do harm in a page that takes texts for markup."""

from typing import Any, Final

SCRIPT: Final = "</script><script>window.harmed = 1</script>"
IMAGE: Final = '"><img src=x onerror="window.harmed = 1">'
QUOTES: Final = 'it\'s "quoted" & <b>bold</b> <!-- ${window.harmed = 1} /*data*/ \u2028 日本語 🦙'


def hostile_runs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same runs with names and texts that bite; tokens and numbers stay."""
    return [_hostile(run) for run in runs]


def _hostile(run: dict[str, Any]) -> dict[str, Any]:
    detail = run["detail"] | {"about": QUOTES, "issue": IMAGE, "model": SCRIPT, "toml": SCRIPT}
    detail |= {"options": {SCRIPT: IMAGE, "$": {"$": 3}}, "kind": QUOTES}
    steps = [_hostile_step(step) for step in run["steps"]]
    return run | {"scenario": SCRIPT, "profile": f"x@{IMAGE}", "steps": steps, "detail": detail}


def _hostile_step(step: dict[str, Any]) -> dict[str, Any]:
    parts = [each | {"name": SCRIPT} for each in step["detail"]["parts"]]
    events = [each | {"file": IMAGE, SCRIPT: QUOTES} for each in step["events"]]
    explanation = step["explanation"] | {"sentences": [IMAGE, SCRIPT, QUOTES]}
    if explanation["fault"]:
        explanation["fault"] = explanation["fault"] | {"comes_from": SCRIPT}
    return step | {
        "name": f"{SCRIPT}{IMAGE}",
        "events": events,
        "message": QUOTES,
        "explanation": explanation,
        "detail": step["detail"] | {"parts": parts},
    }
