"""A scenario as a report in the project's own form, and a patch as a change in words."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from cachesim.engines.family import Profile
from cachesim.engines.words import counted
from cachesim.errors import ScenarioError
from cachesim.export.case import Case, in_upstreams_words
from cachesim.prove.hunt.report import STATED
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Step
from cachesim.scenario.labels import CONFIRMED, DERIVED, agrees
from cachesim.scenario.prompts import REPLY, Vocabulary, piece_of
from cachesim.testing.story import deed
from cachesim.typed import Json
from cachesim.why.infer.settings import flag_of

Part: TypeAlias = Callable[[Case], Iterable[str]]
"""Lines of a report."""

SOURCES: Final[Mapping[str, str]] = {
    "llama.cpp": "tools/server/server-context.cpp",
    "ik_llama.cpp": "examples/server/server-context.cpp",
    "koboldcpp": "gpttype_adapter.cpp",
    "llama-cpp-python": "llama_cpp/llama.py, llama_cpp/llama_cache.py",
    "lm-studio": "mlx_engine/cache_wrapper.py",
    "marconi": "radix_cache_hybrid.py",
    "mlx-lm": "mlx_lm/server.py, mlx_lm/models/cache.py",
    "ollama": "x/mlxrunner/cache.go",
    "ollama-runner": "runner/ollamarunner/cache.go",
    "omlx": "omlx/cache/prefix_cache.py",
    "rapid-mlx": "vllm_mlx/scheduler.py, vllm_mlx/memory_cache.py",
    "sglang": "python/sglang/srt/mem_cache, python/sglang/srt/managers/scheduler.py",
    "transformers": "generation/continuous_batching/cache.py, cache_utils.py",
    "vllm": "vllm/v1/core/kv_cache_manager.py, vllm/v1/core/sched/scheduler.py",
    "vllm-mlx": "vllm_mlx/scheduler.py, vllm_mlx/memory_cache.py",
}
"""Engine -> where its cache is."""


def version(case: Case) -> Iterator[str]:
    """The release and its package."""
    release = case.family.release(case.profile.release)
    package = release.package
    yield f"{case.family.name} {release.name}" + (
        f" ({package.name} {package.version})" if package else f", {release.follows}"
    )


def command(case: Case) -> Iterator[str]:
    """The server's flags."""
    options = (STATED if case.family.name == "llama.cpp" else {}) | dict(
        case.scenario.engine.options
    )
    flags = (flag_of(case.family, n, v, case.profile.release) for n, v in options.items())
    program = {"vllm": "vllm serve MODEL", "sglang": "sglang serve --model-path MODEL"}.get(
        case.family.name, case.family.program or case.family.name
    )
    model = " -m model.gguf" if case.family.name in GGUF else ""
    yield "```sh"
    yield f"{program}{model} {' '.join(filter(None, flags))}".rstrip()
    yield "```"


GGUF: Final = ("llama.cpp", "ik_llama.cpp", "koboldcpp", "llama-cpp-python", "ollama-runner")
"""Engines that load a GGUF file."""


def model(case: Case) -> Iterator[str]:
    """The model's layers: counts depend on them alone."""
    spec = spec_of(case.scenario.model)
    kinds = {
        "ssm": "Mamba-2",
        "delta": "gated delta net",
        "conv": "short convolution",
        "attention": "full attention",
        "window": f"sliding window of {spec.window}" if not spec.chunked else "chunked attention",
    }
    layers = (
        f"{spec.layers.count(kind)} with {kinds[kind]}" for kind in dict.fromkeys(spec.layers)
    )
    yield f"Any model whose layers are of these kinds; this one has {', '.join(layers)}."


def steps(case: Case) -> Iterator[str]:
    """The requests in order: as a table, and as shell lines where the server takes token ids."""
    scenario = case.scenario
    yield case.about
    yield ""
    if scenario.spans:
        written = (f"`{name}` {_length(value)}" for name, value in scenario.spans.items())
        yield f"Parts of the prompts: {', '.join(written)}."
        yield ""
    yield "| request | prompt | reused | of |"
    yield "|---|---|---|---|"
    for step, seen in zip(scenario.step[: case.step + 1], case.run.steps, strict=False):
        cached = "" if seen.cached is None else seen.cached
        yield f"| {seen.name} | {_prompt(step)} | {cached} | {seen.size or ''} |"
    lines = list(shell(case))
    if lines:
        yield ""
        yield "```sh"
        yield from lines
        yield "```"


def _length(value: int | str | tuple[int, ...]) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return counted(value if isinstance(value, int) else len(value), "token")


def _prompt(step: Step) -> str:
    if step.do != "complete":
        return deed(step).removeprefix("then ")
    if step.messages:
        return ", ".join(f"{turn.role}: {turn.content[:60]}" for turn in step.messages)
    if isinstance(step.prompt, str):
        parts = " ".join(f"`{word}`" for word in step.prompt.split())
    else:
        parts = counted(len(step.prompt or ()), "token")
    more = [f"`{name}` {value}" for name, value in step.options.items()]
    more += ["at the same time"] if step.with_previous else []
    more += [f"slot {step.slot}"] if step.slot >= 0 else []
    return ", ".join([parts, *more])


ENDPOINTS: Final[Mapping[str, tuple[str, str, Mapping[str, Any], str]]] = {
    "llama.cpp": ("8080/completion", "n_predict", {"temperature": 0, "return_tokens": True}, ""),
    "ik_llama.cpp": ("8080/completion", "n_predict", {"temperature": 0}, ""),
    "vllm": ("8000/v1/completions", "max_tokens", {"model": "MODEL", "temperature": 0}, ""),
    "sglang": ("30000/generate", "max_new_tokens", {"temperature": 0}, "sampling_params"),
}
"""Engine -> where it takes token ids, the field with the length of a reply, further fields, and
the field that those are in."""

SPAN: Final = (
    'span() {{ python3 -c "import random; print(*[$1, *random.Random($1).choices(range({low}, '
    "{high}), k=$2 - 1)], sep=',')\"; }}"
)


def shell(case: Case) -> Iterator[str]:
    """The requests as curl, where all of them are prompts of named parts."""
    scenario, sent = case.scenario, case.scenario.step[: case.step + 1]
    named = all(
        step.do == "complete" and isinstance(step.prompt, str) and not step.with_previous
        and not step.options
        for step in sent
    )  # fmt: skip
    quoted = any(REPLY in str(step.prompt) for step in sent)
    if case.family.name not in ENDPOINTS or not named or scenario.images or scenario.models:
        return
    if quoted and case.family.name != "llama.cpp":
        return
    spec = spec_of(scenario.model)
    low = max(spec.first_plain, 1)
    yield SPAN.format(low=low + len(scenario.spans), high=spec.vocabulary)
    words = {piece_of(word)[0] for step in sent for word in str(step.prompt).split()}
    written = Vocabulary.of(scenario, spec).spans
    for number, (name, value) in enumerate(scenario.spans.items()):
        ids = ",".join(map(str, written[name])) if not isinstance(value, int) else ""
        if name in words:
            yield f"{_variable(name)}={ids or f'$(span {low + number} {value})'}"
    place, length, more, inside = ENDPOINTS[case.family.name]
    for step in sent:
        options = {length: step.predict if step.predict is not None else 8, **more}
        options |= {"cache_prompt": False} if not step.cache_prompt else {}
        options |= {"id_slot": step.slot} if step.slot >= 0 else {}
        body = json.dumps({inside: options} if inside else options)[1:-1].replace('"', '\\"')
        ids = ", ".join(map(_piece, str(step.prompt).split()))
        field = "input_ids" if inside else "prompt"
        call = f'curl -s localhost:{place} -d "{{\\"{field}\\": [{ids}], {body}}}"'
        if any(f"{step.name}{REPLY}" in str(other.prompt) for other in sent):
            call = f"{_variable(step.name + REPLY)}=$({call} | jq -r '.tokens | join(\",\")')"
        yield call


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name if not name[:1].isdigit() else f"_{name}")


def _piece(word: str) -> str:
    name, piece = piece_of(word)
    if piece == slice(None):
        return f"${_variable(name)}"
    ends = f"{(piece.start or 0) + 1}-{'' if piece.stop is None else piece.stop}"
    return f"$(cut -d, -f{ends} <<< ${_variable(name)})"


def expected(case: Case) -> Iterator[str]:
    """What the server should do."""
    yield f"Expected: {case.expected()}."


def got(case: Case) -> Iterator[str]:
    """What it does."""
    yield f"Got: {case.got()}."


def cause(case: Case) -> Iterator[str]:
    """The rules that decided, and where they are."""
    found = list(dict.fromkeys(case.reasons()))
    if found:
        yield f"Why, by the numbers of this run ({SOURCES.get(case.family.name, 'its source')}):"
        yield ""
        yield from (f"- {sentence}" for sentence in found)
        yield ""
    for name in case.fixed.patches if case.fixed is not None else ():
        patch = case.family.patch(name.removeprefix("-"))
        upstream = case.family.upstream_of(patch)
        yield f"With this change it is as expected: {patch.about}" + (
            f" ({upstream})." if upstream else "."
        )
        yield ""
    yield f"How this was shown: {_shown(case)}."


def _shown(case: Case) -> str:
    package = case.family.release(case.profile.release).package
    where = f"{package.name} {package.version}" if package else case.profile.release
    if case.seen.evidence == CONFIRMED or agrees(case.scenario, case.profile):
        return f"the steps were run on {where}, on a processor, and gave these numbers"
    if case.seen.evidence == DERIVED:
        return f"the scheduler and the metadata of {where} gave these numbers, without a model"
    return "the numbers follow from the release's source, and the steps were not run on it"


def known(case: Case) -> Iterator[str]:
    """The report that it is known by."""
    source = case.scenario.source
    also = ", ".join(filter(None, (source.issue, *source.also)))
    if also:
        yield f"Related: {also}."


def unknown(_: Case) -> Iterator[str]:
    """A field that only the reporter can fill in."""
    yield "(yours)"


BODY: Final[tuple[Part, ...]] = (steps, expected, got, cause, known)
"""Steps, results and cause."""

LLAMA: Final[Mapping[str, tuple[Part, ...]]] = {
    "Name and Version": (version,),
    "Operating systems": (unknown,),
    "Which llama.cpp modules do you know to be affected?": (lambda _: ["llama-server"],),
    "Models": (model,),
    "Command line": (command,),
    "Problem description & steps to reproduce": BODY,
    "First Bad Commit": (unknown,),
    "Relevant log output": (unknown,),
}
IK_LLAMA: Final[Mapping[str, tuple[Part, ...]]] = {
    "What happened?": BODY,
    "Command line": (command,),
    "Model": (model,),
    "Name and Version": (version,),
    "What operating system are you seeing the problem on?": (unknown,),
    "Relevant log output": (unknown,),
}
PYTHON: Final[Mapping[str, tuple[Part, ...]]] = {
    "Expected Behavior": (expected,),
    "Current Behavior": (got, cause, known),
    "Environment and Context": (version, model),
    "Steps to Reproduce": (steps, command),
    "Failure Logs": (unknown,),
}
PLAIN: Final[Mapping[str, tuple[Part, ...]]] = {
    "Describe the bug": BODY,
    "Command": (command,),
    "Model": (model,),
    "Version": (version,),
}
FORMS: Final[Mapping[str, Mapping[str, tuple[Part, ...]]]] = {
    "llama.cpp": LLAMA,
    "ik_llama.cpp": IK_LLAMA,
    "vllm": {
        "Your current environment": (version,),
        "🐛 Describe the bug": BODY,
        "Command": (command,),
        "Model": (model,),
    },
    "sglang": {
        "Describe the bug": BODY,
        "Reproduction": (command,),
        "Model": (model,),
        "Environment": (version,),
    },
    "transformers": {
        "System Info": (version,),
        "Who can help?": (unknown,),
        "Reproduction": (steps, command, model),
        "Expected behavior": (expected, got, cause, known),
    },
    "llama-cpp-python": PYTHON,
    "koboldcpp": {"Describe the Issue": BODY, "Additional Information": (version,)},
    "ollama": {
        "What is the issue?": BODY,
        "Relevant log output": (unknown,),
        "OS": (unknown,),
        "Ollama version": (version,),
    },
}
"""Engine -> the fields of its project's form, with what stands below each; others get `PLAIN`."""


def issue_of(case: Case) -> str:
    """The report as Markdown."""
    if case.profile.patches:
        raise ScenarioError(
            f"{case.scenario.name}: {case.profile} is no release but one with a change laid over "
            "it; a report names a release: --release with one of those that the scenario lists"
        )
    if not case.broken and case.law != "counts":
        raise ScenarioError(
            f"{case.scenario.name}: {case.profile} does what is expected; there is nothing to "
            "report of it"
        )
    name = case.family.name
    form = FORMS.get("ollama" if name.startswith("ollama") else name, PLAIN)
    title = case.scenario.shows.symptom or case.about
    lines = [f"# {title[:1].upper()}{title[1:].rstrip('.')}", ""]
    for heading, parts in form.items():
        lines += [f"### {heading}", ""]
        for part in parts:
            lines += [*part(case), ""]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"
    return in_upstreams_words(text)


def patch_of(case: Case) -> str:
    """The place of a change, and its condition before and after, in words."""
    profile = case.fixed
    if profile is None or not profile.patches:
        raise ScenarioError(
            f"{case.scenario.name}: no patch changes what it shows; --to patch needs a scenario "
            "with one among its profiles, as llama.cpp-two-codes has b11549+24035"
        )
    lines = []
    for sign in profile.patches:
        patch = case.family.patch(sign.removeprefix("-"))
        upstream = case.family.upstream_of(patch)
        lines += [
            f"# {patch.about[:1].upper()}{patch.about[1:]}",
            "",
            f"Where: {SOURCES.get(case.family.name, 'the cache')} of {case.profile.release}."
            + (f" Proposed as {upstream}." if upstream else ""),
            "",
        ]
        before, after = _rules(case, profile)
        lines += ["Conditions that change (the names are of what each decides):", ""]
        lines += [f"- `{name}`: {before[name]} -> {after[name]}" for name in after]
        lines += [""]
    lines += [*expected(case), "", *got(case), "", *cause(case)]
    text = "\n".join(lines).rstrip("\n") + "\n"
    return in_upstreams_words(text)


def _rules(case: Case, profile: Profile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the rules that a patch changes, before and after."""
    plain = Profile(profile.engine, profile.release)
    was, now = (_flat(case.family.rules(laid)) for laid in (plain, profile))
    changed = [name for name in now if was.get(name) != now[name]]
    return {n: was.get(n) for n in changed}, {n: now[n] for n in changed}


def _flat(rules: Json, name: str = "") -> dict[str, Any]:
    fields = getattr(rules, "__dataclass_fields__", None)
    if fields is None:
        return {name: rules}
    found: dict[str, Any] = {}
    for field in fields:
        found |= _flat(getattr(rules, field), f"{name}.{field}" if name else field)
    return found
