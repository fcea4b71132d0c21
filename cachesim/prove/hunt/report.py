"""A proven finding as a report to post: requests, answers, expected answers."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cachesim.engines.chat import ByteTokenizer
from cachesim.engines.family import Profile, family_of
from cachesim.engines.llama_cpp_python.family import FAMILY as PYTHON
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.files import free_name
from cachesim.prove.command import proof_command
from cachesim.prove.hunt.loop import ProvenFinding
from cachesim.prove.llama_cpp.calls import call_for
from cachesim.prove.llama_cpp.flags import adapter_file, adapter_names
from cachesim.prove.llama_cpp.workload import in_one_call, resolved
from cachesim.prove.llama_cpp_python.scenarios import report_lines
from cachesim.scenario.checks import spec_of
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.labels import CONFIRMED, DERIVED, SOURCE
from cachesim.scenario.prompts import Vocabulary
from cachesim.testing.story import story
from cachesim.why.infer.settings import flag_of

WARM: Final = 8080
"""The port of the server that is shown to be wrong."""

COLD: Final = 8081
"""The port of a server that has seen no request yet."""

STATED: Final = {"parallel": 1, "ctx_size": 4096}
"""Flags that a server has other defaults for: the slots are many, the context is the model's."""

LIKELIEST: Final = 10
"""Tokens whose likelihood is shown: the likeliest alone may be right by chance."""

RACING: Final = (
    "The prompt of the line that ends with `&` has to be in prefill when the next request comes: "
    "if it was done sooner, start the servers again."
)

ENDS: Final = "The server ends during the last of these requests, or answers none any more."
FAILS: Final = "One of these requests gets an error."
COUNTED: Final = "`cache_n` and `prompt_n` show it."
DIFFERS: Final = (
    "The last line repeats the request with the wrong answer on a server without a cache: the "
    "tokens, or the ten likeliest in `top_logprobs`, differ by more than rounding."
)

SHOWN: Final = ["timings/cache_n", "timings/prompt_n", "tokens", "completion_probabilities"]
"""Fields of an answer that are printed; of a request that only fills the cache, the first two."""

EXPECTED: Final = {
    "wrong answer": ("the answer of a server without a cache", DIFFERS),
    "crash": ("an answer to every request", ENDS),
    "refusal": ("an answer to every request", FAILS),
}
"""By the kind of a finding, the expected result, and the observed one."""
LAW: Final = ("counts and contents that obey the engine's own rules", COUNTED)


def write(finding: ProvenFinding, profile: Profile, folder: Path, number: int, where: str) -> Path:
    """Write the report, and the scenario beside it; the report's path."""
    scenario = free_name(folder / f"{number:02}-{finding.found.scenario.name}.toml")
    scenario.write_text(to_toml(finding.found.scenario), encoding="utf-8")
    report = free_name(scenario.with_suffix(".md"))
    lines = _lines(finding, profile, scenario, where)
    report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return report


def _lines(finding: ProvenFinding, profile: Profile, file: Path, where: str) -> Iterator[str]:
    scenario, shown = finding.found.scenario, finding.found
    yield f"# {profile.engine} {profile.release}: {finding.cause}"
    yield ""
    release = family_of(profile.engine).release(profile.release)
    package = f" ({release.package.name} {release.package.version})" if release.package else ""
    yield f"Release: {profile.engine} {profile.release}{package}, {release.about}."
    if finding.known:
        yield f"Known: the shipped scenario `{finding.known}` shows the same cause."
    yield ""
    yield "What a client does:"
    yield ""
    yield from (f"    {line.strip()}" for line in story(shown, profile)[1:])
    yield ""
    evidence, kind = finding.result.evidence, shown.finding.kind
    wrong = shown.finding.step if kind == "wrong answer" else None
    wanted, shows = EXPECTED.get(kind, LAW)
    yield f"Expected: {wanted}."
    yield f"Seen on {where}: {finding.result.seen}."
    if shown.finding.detail != finding.result.seen:
        yield f"Simulated: {shown.finding.detail}."
    yield f"Evidence: {evidence}."
    yield ""
    if finding.cause.cure:
        patch = family_of(profile.engine).patch(finding.cause.cure)
        yield f"Cause: {patch.cures}. It is gone with `{profile}+{patch.name}`: {patch.about}."
    else:
        marks = f" Branches taken: {'; '.join(finding.cause.marks)}." if finding.cause.marks else ""
        yield f"Cause: unknown.{marks}"
    if finding.target != profile:
        yield f"Found with other known defects fixed: `{finding.target}`."
    yield ""
    if profile.engine == LLAMA_CPP.name and evidence == CONFIRMED:
        cold = "" if wrong is None else "; the second one stays cold"
        yield f"On llama-servers of your own{cold}:"
        yield ""
        yield from (f"    {line}" for line in commands(scenario, profile.release, wrong))
        yield ""
        yield shows
        if any(step.turns for step in scenario.step):
            yield RACING
        yield ""
    if profile.engine == PYTHON.name and evidence == CONFIRMED and wrong is not None:
        yield from report_lines(scenario, profile.release, wrong)
    yield "In cachesim:"
    yield ""
    yield f"    cachesim run {file.name} --arithmetic ring"
    proof = proof_command(scenario, profile, file.name, wrong)
    if evidence == DERIVED:
        proof = f"cachesim real {profile.engine} --runner --scenario {file.name}"
    if evidence != SOURCE and proof:
        yield f"    {proof}"


def commands(scenario: Scenario, release: str, wrong: int | None) -> Iterator[str]:
    """The model, the servers and the requests, as lines for a shell.

    `wrong` is the step with the wrong answer, where there is one: it goes to a server that has
    seen no other request too, and both show the likelihood of each token. No grammar rules there.
    """
    model = scenario.model
    changes = f" --window {model.window}" if model.window else ""
    changes += f" --seed {model.seed}" if model.seed else ""
    written = f"cachesim real gguf {model.preset} -o"
    yield f"{written} {model.preset}.gguf{changes}"
    for name in adapter_names(scenario.engine.options):
        yield f"{written} {adapter_file(Path(), name)} --adapter {name}{changes}"
    flags = " ".join(_flags(scenario, release))
    ports = (WARM,) if wrong is None else (WARM, COLD)
    for port in ports:
        yield f"llama-server -m {scenario.model.preset}.gguf {flags} --port {port} &"
    ready = " && ".join(f"curl -sfo /dev/null localhost:{port}/health" for port in ports)
    yield f"until {ready}; do sleep 1; done"
    spec = spec_of(scenario.model)
    vocabulary = Vocabulary.of(scenario, spec)
    words = vocabulary.tokenizer if spec.recall else None
    steps = []
    for number in range(len(scenario.step)):
        steps.append(resolved(scenario, number, vocabulary))
        given = steps[-1].reply  # which later prompts may quote
        vocabulary.replies[steps[-1].name] = vocabulary.tokens(given or ())
    calls = list(_until(scenario, wrong))
    patience = " -m 30" if wrong is None else ""
    yield from (curl(COLD, [step]) for step in steps[: wrong or 0] if step.do == "set-lora")
    for numbers, after in zip(calls, [*calls[1:], []], strict=True):
        meanwhile = " &" if after and steps[after[0]].turns else ""
        group = [steps[number] for number in numbers]
        yield curl(WARM, group, shown=wrong in numbers, patience=patience, words=words) + meanwhile
    if any(steps[call[0]].turns for call in calls):
        yield "wait $!"
    if wrong is None:
        return
    alone = replace(steps[wrong], slot=-1, with_previous=False, turns=None)
    yield curl(COLD, [alone], shown=True, words=words)


def curl(
    port: int,
    steps: Sequence[Step],
    *,
    shown: bool = False,
    patience: str = "",
    words: ByteTokenizer | None = None,
) -> str:
    """A call as a shell command; it shows tokens and their probabilities.

    With `words`, of a model that recalls facts, prompts are sent and replies shown as text.
    """
    free = [replace(step, reply=None) if shown else step for step in steps]
    call = call_for(free)
    body = call["body"]
    if "response_fields" in body:
        probabilities = {"n_probs": LIKELIEST} if shown else {}
        plain = {key: value for key, value in body.items() if key != "n_probs"} | probabilities
        fields = ["content", *SHOWN[:2]] if words else SHOWN if shown else SHOWN[:2]
        body = plain | {"response_fields": fields}
        if words and isinstance(body.get("prompt"), list):
            body["prompt"] = words.decode(body["prompt"])
    arguments = shlex.join([f"localhost:{port}{call['path']}", "-d", json.dumps(body)])
    return f"curl -s{patience} -w '\\n' {arguments}"


def _until(scenario: Scenario, wrong: int | None) -> Iterator[list[int]]:
    """The calls up to the wrong answer, and those that arrive while it is computed."""
    reached = False
    for call in in_one_call(scenario):
        if reached and not scenario.step[call[0]].with_previous:
            return
        yield call
        reached = reached or wrong in call


def _flags(scenario: Scenario, release: str) -> Iterator[str]:
    """The server's flags as a shell takes them, with those whose default is another one here."""
    options = scenario.engine.options
    for name, value in {**STATED, **options}.items():
        if name != "lora":
            yield from filter(None, [flag_of(LLAMA_CPP, name, value, release)])
    yield from (
        f"--lora {adapter_file(Path(), adapter_name)}" for adapter_name in adapter_names(options)
    )
    if any(step.file for step in scenario.step):
        yield "--slot-save-path ./"
