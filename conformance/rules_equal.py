"""`python -m conformance.rules_equal REVISION`: the rules of each profile, then and now.

Compares every release of every engine, alone and with each patch that fits or can be taken back, at
a git revision and in the working tree, field by field. A profile that the revision does not have is
counted; a former name counts as the profile that it stands for. One that is gone, or whose rules
differ, is named. Move releases and patches, and run this: no play is needed to see that all is as
before.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from cachesim.engines import FAMILIES
from cachesim.engines.family import Profile, Rules
from cachesim.engines.mlx_lm.families import FAMILIES as CLASSES
from cachesim.errors import ProfileError
from cachesim.typed import Value

ROOT: Final = Path(__file__).parents[1]
FEW: Final = 10
"""Fields of a profile that are named at most."""


def plain(value: object) -> Value:
    """A value of rules as JSON has it, so that classes may move between modules."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"": type(value).__name__, **named}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return getattr(value, "__qualname__", None) or repr(value)


def dumped() -> Iterator[tuple[str, Any]]:
    """Each profile of this tree, and its rules, or the error that refuses it."""
    for engine, family in FAMILIES.items():
        backs = {patch.name: family.since(patch.landed) for patch in family.patches if patch.back}
        for release in family.names():
            laid = [patch.name for patch in family.patches if release in patch.fits]
            back = [f"-{name}" for name, having in backs.items() if release in having]
            for patches in ((), *((name,) for name in (*laid, *back))):
                profile = Profile(engine, release, patches)
                try:
                    rules = family.rules(profile)
                except ProfileError:
                    yield str(profile), "refused"
                    continue
                yield str(profile), plain(rules) | _of_classes(rules, release)


def _of_classes(rules: Rules, release: str) -> dict[str, Any]:
    """The rules of mlx-lm's model classes, where an older tree has them for each release."""
    if not hasattr(rules, "recurrent"):
        return {}
    named = {name: plain(rules.recurrent(each, release)) for name, each in CLASSES.items()}
    return {"classes": named}


def of_tree(tree: Path) -> dict[str, Any]:
    """The profiles of another tree, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, __file__, "--dump"]
    told = subprocess.run(command, env=environment, cwd=tree, capture_output=True, check=True)
    return dict(json.loads(told.stdout))


def differing(before: object, after: object, path: str = "") -> Iterator[str]:
    """The fields in which two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            yield from differing(before.get(name), after.get(name), f"{path}.{name}")
    elif before != after:
        shown = [
            "its rules" if isinstance(value, dict) else repr(value) for value in (before, after)
        ]
        yield f"{path.removeprefix('.')} {' -> '.join(shown)}".strip()


def _named_today(profile: str) -> str:
    """The profile of today that a former name stands for."""
    try:
        return str(Profile.parse(profile))
    except ProfileError:
        return ""


def main(revision: str) -> int:
    """Print what differs; 1 if anything does."""
    with tempfile.TemporaryDirectory() as folder:
        packed = ["git", "archive", revision, "cachesim"]
        archive = subprocess.run(packed, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        then = of_tree(Path(folder))
    now = of_tree(ROOT)
    wrong = 0
    for profile, rules in then.items():
        name = profile if profile in now else _named_today(profile)
        found = [*differing(rules, now[name])] if name in now else ["is gone"]
        wrong += bool(found)
        for line in found[:FEW]:
            sys.stdout.write(f"{profile}: {line}\n")
    new = len(now.keys() - then.keys())
    sys.stdout.write(f"{len(then)} profiles of {revision}: {wrong} differ; {new} are new\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--dump"]:
        sys.stdout.write(json.dumps([*dumped()]))
    elif len(sys.argv) == 2:
        sys.exit(main(sys.argv[1]))
    else:
        sys.exit(__doc__)
