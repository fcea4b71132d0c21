"""Checks on the parts of a scenario: names, order, sizes, engines, expectations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cachesim.engines.family import FAMILIES, Profile, did_you_mean
from cachesim.errors import InputError, OptionError, ScenarioError
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import ModelSpec
from cachesim.scenario import limits
from cachesim.scenario.acceptance import (
    full_profile,
    partner_of,
    refused_option,
    refused_profile,
    wrong_profile,
)
from cachesim.scenario.format import LEAVES, Expect, Scenario, Seen, Step, Turn
from cachesim.scenario.models import bytes_needed, spec_of
from cachesim.scenario.prompts import PLACE, REPLY, piece_of, pieces, references
from cachesim.scenario.readers import Place, nearest, short
from cachesim.scenario.reading import Problem, read, removable

DEFAULT_PREDICT: Final = 8
COMPANIONS: Final = ("spec_type", "companion", "speculative_method", "draft_model")
"""The options by which servers are given a companion."""

NEEDS: Final = {
    "complete": (),
    "slot-save": ("file",),
    "slot-restore": ("file",),
    "slot-erase": (),
    "set-lora": ("options",),
    "restart": (),
    "sleep": (),
    "cancel": (),
}
"""Required keys of an action."""

ONLY_FOR: Final = {
    "prompt": ("complete",),
    "messages": ("complete",),
    "reply": ("complete",),
    "drafts": ("complete",),
    "predict": ("complete",),
    "suffix": ("complete",),
    "leaves": ("complete",),
    "held": ("complete",),
    "options": ("complete", "set-lora"),
    "file": ("slot-save", "slot-restore"),
    "of": ("cancel",),
}
"""Keys that mean something for some actions only."""


def scenario_of(mapping: Mapping[str, Any]) -> Scenario:
    """The scenario that a mapping describes; ScenarioError names everything that is wrong."""
    scenario, problems = checked(mapping)
    if problems or scenario is None:
        raise ScenarioError(*capped([str(problem) for problem in problems]))
    return scenario


def checked(mapping: Mapping[str, Any]) -> tuple[Scenario | None, list[Problem]]:
    """The scenario, and everything that is wrong with it, but not what follows from that."""
    scenario, problems = read(mapping)
    if scenario is not None:
        wrong = {removable(problem.path) for problem in problems}
        problems += [each for each in check(scenario) if not any(_follows(each, w) for w in wrong)]
    return scenario, problems


def _follows(problem: Problem, wrong: Place) -> bool:
    """True if a problem is there only because a wrong value was taken out."""
    path = problem.path
    inside = path[: len(wrong)] == wrong
    around = bool(path) and wrong[: len(path)] == path
    unknown = bool(problem.about) and wrong in {("spans", problem.about), ("spans",)}
    return inside or around or unknown


def capped(problems: Sequence[str]) -> list[str]:
    """The first problems, and how many there are more."""
    told = list(problems[: limits.PROBLEMS])
    more = len(problems) - len(told)
    return [*told, f"and {more} more problems"] if more else told


def check(scenario: Scenario) -> Iterator[Problem]:
    """Everything that is wrong with how the parts fit together."""
    yield from _top(scenario)
    yield from _model(scenario)
    yield from _engine(scenario)
    yield from _steps(scenario)
    yield from _sizes(scenario)
    yield from promises(scenario)


def _top(scenario: Scenario) -> Iterator[Problem]:
    if scenario.format == 0:
        yield Problem(("format",), "missing; write format = 1")
    if not scenario.name:
        yield Problem(("name",), "missing; a scenario needs a name")
    if not scenario.step:
        yield Problem(("step",), "missing; a scenario needs at least one [[step]]")


def _model(scenario: Scenario) -> Iterator[Problem]:
    model, family = scenario.model, FAMILIES.get(scenario.engine.name)
    if model.preset is None and model.layers is None:
        yield Problem(("model",), "needs a preset or layers")
    elif model.preset is not None and model.layers is not None:
        yield Problem(("model", "layers"), "has no place beside a preset; keep one of the two")
    elif model.preset is not None and model.preset not in PRESETS:
        known = tuple(PRESETS)
        hint = nearest(model.preset, known) or f"; there are {', '.join(known)}"
        yield Problem(("model", "preset"), f"there is no preset {short(model.preset)}{hint}")
    else:
        yield from _measures(scenario)
    if model.family is not None and family is not None and family.check_model is None:
        text = f"has no place here: {family.name} serves all models by the same rules"
        yield Problem(("model", "family"), text)


def _measures(scenario: Scenario) -> Iterator[Problem]:
    model, family = scenario.model, FAMILIES.get(scenario.engine.name)
    try:
        spec = spec_of(model)
        if family is not None:
            family.check(spec)
    except OptionError as error:
        yield Problem(("model", "family"), str(error))
        return
    except InputError as error:
        yield Problem(("model",), str(error))
        return
    if model.window is not None and "window" not in spec.layers:
        which = f"preset {model.preset!r} has" if model.preset else "there is"
        yield Problem(("model", "window"), f"has no meaning: {which} no layer with a window")


def _engine(scenario: Scenario) -> Iterator[Problem]:
    name = scenario.engine.name
    if not name:
        yield Problem(("engine", "name"), "missing; say which server answers")
    elif name not in FAMILIES:
        known = sorted(FAMILIES)
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        yield Problem(("engine", "name"), f"there is no engine {short(name)}; {hint}")
    for key, most in (("ctx_size", limits.CONTEXT), ("parallel", limits.SLOTS)):
        value = scenario.engine.options.get(key, 1)
        if isinstance(value, int) and value > most:
            yield Problem(("engine", "options", key), f"must be at most {most}, found {value}")
    for index, text in enumerate(scenario.engine.profiles):
        if problem := wrong_profile(name, text):
            yield Problem(("engine", "profiles", index), problem)
    yield from _options(scenario)


def _options(scenario: Scenario) -> Iterator[Problem]:
    spec, told = _spec_or_plain(scenario), set()
    for text in scenario.engine.profiles:
        try:
            profile = full_profile(scenario.engine.name, text)
        except InputError:
            continue
        if refused_profile(profile):
            continue
        for key, value in scenario.engine.options.items():
            problem = refused_option(profile, spec, key, value)
            needs = problem and partner_of(profile, spec, scenario.engine.options, key)
            if problem and not needs and key not in told:
                told.add(key)
                yield Problem(("engine", "options", key), problem)


def _spec_or_plain(scenario: Scenario) -> ModelSpec:
    try:
        return spec_of(scenario.model)
    except InputError:
        return preset("dense")


def _steps(scenario: Scenario) -> Iterator[Problem]:
    names = scenario.step_names
    group: set[str] = set()
    for index, step in enumerate(scenario.step):
        path: Place = ("step", index)
        if names[index] in names[:index]:
            yield Problem((*path, "name"), f"the name {names[index]!r} is taken by an earlier step")
        if step.with_previous and index == 0:
            yield Problem((*path, "with_previous"), "there is no step before the first")
        together = step.with_previous or step.do == "cancel"
        group = {*group, names[index]} if together else {names[index]}
        yield from _action(step, path)
        yield from _endpoint(step, path)
        yield from _turns(step, path)
        yield from _companion(scenario, index)
        yield from _cancel(scenario, index, group - {names[index]})
        yield from _references(scenario, index, names, group)


def _companion(scenario: Scenario, index: int) -> Iterator[Problem]:
    """Drafts are the companion's: a server without one would drop them without a word."""
    options = scenario.engine.options
    if scenario.step[index].drafts and all(
        options.get(key, "none") == "none" for key in COMPANIONS
    ):
        text = "have no meaning: no companion proposes them; set one of engine.options"
        yield Problem(("step", index, "drafts"), f"{text} {' or '.join(COMPANIONS)}")


def _turns(step: Step, path: Place) -> Iterator[Problem]:
    for number, turn in enumerate(step.messages):
        if not turn.role:
            yield Problem((*path, "messages", number, "role"), 'missing; write role = "user"')


def _pieces(step: Step, path: Place, lengths: Mapping[str, int]) -> Iterator[Problem]:
    """Pieces that reach beyond what they are of; Python's own slices say nothing."""
    for key, words in pieces(step).items():
        for word in words:
            name, piece = piece_of(word)
            start, end = piece.start or 0, piece.stop
            if end is not None and start >= end:
                yield Problem((*path, key), f"{word!r} is empty: {start} is not below {end}")
            elif max(start, end or 0) > lengths.get(name, max(start, end or 0)):
                text = f"{word!r} reaches beyond the {lengths[name]} tokens of {name!r}"
                yield Problem((*path, key), text)


def _action(step: Step, path: Place) -> Iterator[Problem]:
    if step.do == "complete" and step.prompt is None and not step.messages:
        yield Problem(path, "needs a prompt or messages")
    if step.prompt is not None and step.messages:
        yield Problem((*path, "messages"), "have no place beside a prompt; keep one of the two")
    for key in NEEDS[step.do]:
        if getattr(step, key) is None:
            yield Problem((*path, key), f"missing; {step.do} needs it")
    for key, actions in ONLY_FOR.items():
        if step.do not in actions and getattr(step, key) not in (None, (), {}):
            yield Problem((*path, key), f"has no meaning for do = {step.do!r}")


def _endpoint(step: Step, path: Place) -> Iterator[Problem]:
    endpoint = step.options.get("endpoint", "completion")
    if step.suffix is not None and endpoint != "infill":
        text = 'has no meaning without options = { endpoint = "infill" }'
        yield Problem((*path, "suffix"), text)
    if endpoint == "infill" and step.messages:
        yield Problem((*path, "messages"), "have no meaning for infill; write prompt and suffix")
    if step.query and endpoint != "rerank":
        text = 'has no meaning without options = { endpoint = "rerank" }'
        yield Problem((*path, "query"), text)
    if (step.leaves is None) != (step.held is None):
        missing = "leaves" if step.leaves is None else "held"
        text = f"missing; leaves and held belong together: leaves = {LEAVES[1]!r}, held = 20"
        yield Problem((*path, missing), text)


def _cancel(scenario: Scenario, index: int, group: set[str]) -> Iterator[Problem]:
    step = scenario.step[index]
    if step.do != "cancel":
        return
    target = step.of or (scenario.step_names[index - 1] if index else "")
    if target not in group:
        running = ", ".join(sorted(group)) or "nothing"
        text = f"cancels {target!r}, which is not running then; running: {running}"
        yield Problem(("step", index, "of"), text)


def _references(
    scenario: Scenario, index: int, names: Sequence[str], group: set[str]
) -> Iterator[Problem]:
    answered = {
        name
        for name, step in zip(names[:index], scenario.step, strict=False)
        if step.do == "complete" and name not in group
    }
    known = [*scenario.spans, *(name + REPLY for name in sorted(answered))]
    for key, words in references(scenario.step[index]).items():
        for word in (each for each in words if each not in known):
            text, about = f"there is no span {short(word)}", word
            if word.endswith(REPLY):
                text, about = _why_unanswered(word.removesuffix(REPLY), names, index, group), ""
            yield Problem(("step", index, key), text + nearest(word, known), about)


def _why_unanswered(name: str, names: Sequence[str], index: int, group: set[str]) -> str:
    if name not in names:
        return f"there is no step {short(name)}"
    if names[index] == name:
        why = "is this step itself"
    elif name in group:
        why = "is sent together with this one"
    else:
        why = "comes later" if name not in names[:index] else "answers nothing"
    return f"{name + REPLY!r} is not known yet: step {name!r} {why}"


def _generated_at_most(step: Step, prompt: int, context: int) -> int:
    reply = len(step.reply) if isinstance(step.reply, tuple) else 0
    wanted = step.predict if step.predict is not None else reply or DEFAULT_PREDICT
    return wanted if wanted >= 0 else max(1, context - prompt)


def tokens_at_most(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """For each step the tokens of its prompt and of one reply: as many as there can be."""
    lengths = {
        name: value if isinstance(value, int) else len(value)
        for name, value in scenario.spans.items()
    }
    context = _context(scenario)
    for index, step in enumerate(scenario.step):
        prompt = _length(step.prompt, lengths) + _length(step.suffix, lengths)
        prompt += sum(_content(each, lengths) for each in step.messages)
        grown = _generated_at_most(step, prompt, context) if step.do == "complete" else 0
        lengths[scenario.step_names[index] + REPLY] = grown
        yield prompt, grown


def _context(scenario: Scenario) -> int:
    context = scenario.engine.options.get("ctx_size", 4096)
    return context if isinstance(context, int) else 4096


def _sizes(scenario: Scenario) -> Iterator[Problem]:
    exact = {
        name: value if isinstance(value, int) else len(value)
        for name, value in scenario.spans.items()
        if not isinstance(value, str)
    }
    total = 0
    for index, (prompt, grown) in enumerate(tokens_at_most(scenario)):
        step = scenario.step[index]
        yield from _pieces(step, ("step", index), exact)
        if prompt > limits.PROMPT_TOKENS:
            text = f"has {prompt} tokens; a prompt may have {limits.PROMPT_TOKENS}"
            yield Problem(("step", index, "prompt"), text)
        exact[scenario.step_names[index] + REPLY] = grown
        total += prompt + grown * step.completions
    if total > limits.TOTAL_TOKENS:
        yield Problem(
            ("step",), f"ask for {total} tokens; a scenario may take {limits.TOTAL_TOKENS}"
        )
    yield from _memory(scenario, _context(scenario), total)
    yield from _vocabulary(scenario)


def _memory(scenario: Scenario, context: int, total: int) -> Iterator[Problem]:
    try:
        spec = spec_of(scenario.model)
    except InputError:  # said elsewhere
        return
    slots = scenario.engine.options.get("parallel", 1)
    slots = max(4, slots) if isinstance(slots, int) else 4
    needed = bytes_needed(spec, cells=context + min(total, limits.TOTAL_TOKENS), slots=slots)
    if needed > limits.MEMORY:
        text = f"needs about {needed >> 20} MiB with {context} cells; a scenario may take"
        yield Problem(("model",), f"{text} {limits.MEMORY >> 20}: make model or ctx_size smaller")


def _length(value: object, lengths: Mapping[str, int]) -> int:
    if isinstance(value, str):
        return sum(_length_of(word, lengths) for word in value.split())
    return len(value) if isinstance(value, tuple) else 0


def _content(turn: Turn, lengths: Mapping[str, int]) -> int:
    words = PLACE.findall(turn.content)
    return len(turn.content) + 5 + sum(_length_of(word, lengths) for word in words)


def _length_of(word: str, lengths: Mapping[str, int]) -> int:
    name, piece = piece_of(word)
    return len(range(lengths.get(name, 0))[piece])


def _vocabulary(scenario: Scenario) -> Iterator[Problem]:
    size = scenario.model.vocabulary or 512
    lists: list[tuple[Place, object]] = [
        (("spans", name), value) for name, value in scenario.spans.items()
    ]
    for index, step in enumerate(scenario.step):
        lists += [
            (("step", index, key), getattr(step, key)) for key in ("prompt", "suffix", "reply")
        ]
        lists += [(("step", index, "drafts"), each) for each in step.drafts or ()]
        if step.messages and size != 512:
            text = "need the tokenizer's vocabulary of 512"
            yield Problem(("step", index, "messages"), text)
    for path, tokens in lists:
        if isinstance(tokens, tuple) and tokens and max(tokens) >= size:
            text = f"token {max(tokens)} is outside the vocabulary of {size}"
            yield Problem(path, text)


def promises(scenario: Scenario) -> Iterator[Problem]:
    """Every promise that names a profile or a step that is not there, or speaks of too many."""
    for index, expect in enumerate(scenario.expect):
        path: Place = ("expect", index)
        if expect.profile is not None:
            yield from _listed(scenario, expect.profile, (*path, "profile"))
        yield from _one_per_step(scenario, expect, path)
    for key in ("before", "after"):
        seen: Seen = getattr(scenario.shows, key)
        if seen != Seen():
            yield from _seen(scenario, seen, ("shows", key))


def _seen(scenario: Scenario, seen: Seen, path: Place) -> Iterator[Problem]:
    names = scenario.step_names
    if not seen.profile:
        yield Problem((*path, "profile"), "missing; say which profile shows it")
    else:
        yield from _listed(scenario, seen.profile, (*path, "profile"))
    if not seen.step:
        yield Problem((*path, "step"), "missing; say which step shows it")
    elif seen.step not in names:
        hint = nearest(seen.step, names) or f"; there are {', '.join(names)}"
        yield Problem((*path, "step"), f"there is no step {seen.step!r}{hint}")
    if seen == Seen(profile=seen.profile, step=seen.step):
        yield Problem(path, "says nothing of the step; write cached, answer or error, for example")


def _listed(scenario: Scenario, text: str, path: Place) -> Iterator[Problem]:
    engine, listed = scenario.engine.name, scenario.engine.profiles
    if problem := wrong_profile(engine, text):
        yield Problem(path, problem)
        return
    known = {str(full_profile(engine, each)) for each in listed if not wrong_profile(engine, each)}
    if known and str(full_profile(engine, text)) not in known:
        yield Problem(path, f"{text!r} is not among engine.profiles{nearest(text, listed)}")


def _one_per_step(scenario: Scenario, expect: Expect, path: Place) -> Iterator[Problem]:
    steps = len(scenario.step)
    for key in ("cached", "processed", "answer", "error", "checkpoints"):
        value = getattr(expect, key)
        if isinstance(value, tuple) and len(value) != steps:
            text = f"has {len(value)} items for {steps} steps; write one per step"
            yield Problem((*path, key), text)


def _profile_for(scenario: Scenario, text: str) -> Profile | None:
    """The profile that a text names on this scenario; None where it is one of another engine."""
    engine = scenario.engine.name
    if "@" in text:
        profile = Profile.parse(text)
        return profile if profile.engine == engine else None
    family = FAMILIES.get(engine)
    release = text.partition("+")[0]
    if family is None or family.current_name(release) not in family.names():
        return None
    return full_profile(engine, text)


def chosen_profiles(scenario: Scenario, wanted: Sequence[str]) -> list[Profile]:
    """Those of the wanted profiles that are of the scenario's engine."""
    found = (_profile_for(scenario, text) for text in wanted)
    return [profile for profile in found if profile is not None]


def misfits(scenario: Scenario, profiles: Sequence[str]) -> list[str]:
    """Problems of a scenario on these profiles, such as options that they lack."""
    return capped([str(each) for each in _problems(scenario, tuple(profiles))])


def _problems(scenario: Scenario, profiles: tuple[str, ...]) -> Iterator[object]:
    engine = replace(scenario.engine, profiles=profiles)
    for each in check(replace(scenario.without_promises(), engine=engine)):
        if each.path[:2] == ("engine", "profiles"):
            yield each.text
        else:
            yield each
