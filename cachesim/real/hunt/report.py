"""A proven finding as a report that can be posted: what was asked, what came, what should have."""

import json
from collections.abc import Iterator
from pathlib import Path

from cachesim.engines.family import family_of
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.engines.profile import Profile
from cachesim.files import free_name
from cachesim.real.hunt.loop import Trophy
from cachesim.real.llama_cpp.calls import call_for
from cachesim.real.llama_cpp.scenarios import in_one_call, resolved
from cachesim.scenario.format import Scenario
from cachesim.scenario.models import spec_of
from cachesim.scenario.prompts import Vocabulary
from cachesim.scenario.writing import to_toml
from cachesim.testing.story import story

ADDRESS = "http://localhost:8080"


def write(trophy: Trophy, profile: Profile, folder: Path, number: int, where: str) -> Path:
    """Write the report, and the scenario beside it; the report's path."""
    scenario = free_name(folder / f"{number:02}-{trophy.found.scenario.name}.toml")
    scenario.write_text(to_toml(trophy.found.scenario), encoding="utf-8")
    report = free_name(scenario.with_suffix(".md"))
    lines = _lines(trophy, profile, scenario, where)
    report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return report


def _lines(trophy: Trophy, profile: Profile, file: Path, where: str) -> Iterator[str]:
    scenario, found = trophy.found.scenario, trophy.found
    yield f"# {profile.engine} {profile.release}: {trophy.cause}"
    yield ""
    release = family_of(profile.engine).release(profile.release)
    package = f" ({release.package.name} {release.package.version})" if release.package else ""
    yield f"Release: {profile.engine} {profile.release}{package}, {release.about}."
    if trophy.known:
        yield f"Known: the shipped scenario `{trophy.known}` shows the same cause."
    yield ""
    yield "What a client does:"
    yield ""
    yield from (f"    {line.strip()}" for line in story(found, profile)[1:])
    yield ""
    crash = found.finding.kind == "crash"
    wanted = "an answer to every request" if crash else "the answer of a server without a cache"
    yield f"Expected: {wanted}."
    yield f"Seen on {where}: {trophy.word.seen}."
    yield f"Simulated: {found.finding.detail}."
    yield ""
    if trophy.cause.cure:
        patch = family_of(profile.engine).patch(trophy.cause.cure)
        yield f"Cause: {patch.cures}. It is gone with `{profile}+{patch.name}`: {patch.about}."
    else:
        yield f"Cause, as far as it is known: {'; '.join(trophy.cause.marks)}."
    if trophy.angle != profile:
        yield f"Found with other known defects fixed: `{trophy.angle}`."
    yield ""
    if profile.engine == LLAMA_CPP.name:
        yield "On a llama-server of your own:"
        yield ""
        yield from (f"    {line}" for line in commands(scenario))
        yield ""
    yield "In cachesim:"
    yield ""
    yield f"    cachesim run {file.name} --arithmetic ring"
    if trophy.word.real:
        yield f"    cachesim real {profile.engine} --scenario {file.name}"


def commands(scenario: Scenario) -> Iterator[str]:
    """The model, the server and the requests, as lines for a shell."""
    model = scenario.model
    window = f" --window {model.window}" if model.window else ""
    yield f"cachesim real gguf {model.preset} -o {model.preset}.gguf{window}"
    files = any(step.file for step in scenario.step)
    flags = [*_flags(scenario), *(["--slot-save-path ./"] if files else [])]
    yield " ".join(["llama-server", "-m", f"{model.preset}.gguf", *flags, "&"])
    vocabulary = Vocabulary.of(scenario, vocabulary=spec_of(model).vocabulary)
    calls = list(in_one_call(scenario))
    for numbers, after in zip(calls, [*calls[1:], []], strict=True):
        call = call_for([resolved(scenario, number, vocabulary) for number in numbers])
        body = {key: value for key, value in call["body"].items() if key != "response_fields"}
        meanwhile = " &" if after and scenario.step[after[0]].turns else ""
        yield f"curl -s {ADDRESS}{call['path']} -d '{json.dumps(body)}'{meanwhile}"


def _flags(scenario: Scenario) -> Iterator[str]:
    """The server's flags as a shell takes them."""
    for name, value in scenario.engine.options.items():
        flag = LLAMA_CPP.option(name).flag.split(", ")[-1]
        if value is False:
            yield "--no-" + flag.removeprefix("--")
        else:
            yield flag if value is True else f"{flag} {value}"
