"""Checks on the parts of a scenario: names, order, sizes, engines, expectations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, Final

from cachesim.engines.base import Engine
from cachesim.engines.family import FAMILIES, Profile, did_you_mean, family_of
from cachesim.errors import InputError, OptionError, ScenarioError, SpecError, UpstreamAbort
from cachesim.model.build import build
from cachesim.model.presets import ALL_PRESETS, preset
from cachesim.model.spec import ModelSpec, Sizes
from cachesim.scenario import limits
from cachesim.scenario.format import (
    LEAVES,
    Model,
    Scenario,
    Seen,
    Step,
    Turn,
)
from cachesim.scenario.prompts import PLACE, REPLY, piece_of, pieces, references
from cachesim.scenario.readers import Place, nearest, short
from cachesim.scenario.structure import Problem, read, removable

# From the model a scenario names to the network's spec.

MEASURES: Final = tuple(
    field.name for field in fields(Model) if field.name not in {"preset", "layers", "sizes"}
)
"""Fields of a preset that a scenario may override."""


def spec_of(model: Model) -> ModelSpec:
    """The preset or the layers of a scenario, with the measures it replaces."""
    given = {name: getattr(model, name) for name in MEASURES}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if model.sizes:
        known = {field.name for field in fields(Sizes)}
        for name in model.sizes:
            if name not in known:
                raise SpecError(f"model.sizes has no {name!r}; it has {', '.join(sorted(known))}")
        changes["sizes"] = Sizes(**model.sizes)
    if model.preset is not None:
        return preset(model.preset, **changes)
    return ModelSpec(layers=model.layers or (), **changes)  # type: ignore[arg-type]


# Profiles and options of an engine: checked by its family, and by a server.


def full_profile(engine: str, text: str) -> Profile:
    """A full profile name; a release with patches is completed by its engine."""
    return Profile.parse(text if "@" in text else f"{engine}@{text}")


def wrong_profile(engine: str, text: str) -> str:
    """The reason why a profile, written either way, cannot be run; empty if it can."""
    try:
        profile = full_profile(engine, text)
    except InputError as error:
        return str(error)
    return refused_profile(profile) if profile.engine in FAMILIES else ""


def refused_profile(profile: Profile) -> str:
    """The engine's reason for refusing a profile; empty if it accepts it."""
    return _error_of(lambda: family_of(profile.engine).rules(profile))


def _error_of(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except InputError as error:
        return str(error)
    return ""


def refused_option(profile: Profile, spec: ModelSpec, name: str, value: object) -> str:
    """The reason why a profile does not take an option with this value; empty if it does."""
    try:
        return _refusal(profile, spec, name, value)
    except TypeError:  # an unhashable value is checked each time
        return _refusal.__wrapped__(profile, spec, name, value)


def partner_of(profile: Profile, spec: ModelSpec, options: Mapping[str, object], name: str) -> str:
    """The option that another one depends on, if it is refused alone; empty if there is none.

    `spec_type = "draft-simple"` and `model_draft` need each other.
    """
    for other in options.keys() - {name}:
        if not _refusal_of(profile, spec, {name: options[name], other: options[other]}):
            return other
    return ""


@lru_cache(maxsize=4096, typed=True)
def _refusal(profile: Profile, spec: ModelSpec, name: str, value: object) -> str:
    return _refusal_of(profile, spec, {name: value})


def _refusal_of(profile: Profile, spec: ModelSpec, options: Mapping[str, object]) -> str:
    try:
        Engine.create(profile, model=build(spec, "ring"), options=options)
    except InputError as error:
        return str(error)
    except UpstreamAbort as abort:
        return f"the real server ends as it starts: {abort.where}: {abort.why}"
    return ""


DEFAULT_PREDICT: Final = 8
COMPANIONS: Final = (
    "spec_type",
    "companion",
    "speculative_method",
    "draft_model",
    "speculative_algorithm",
)
"""The options that configure a companion."""

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
    "model": ("complete", "slot-save", "slot-restore", "slot-erase"),
    "predict": ("complete",),
    "suffix": ("complete",),
    "leaves": ("complete",),
    "held": ("complete",),
    "options": ("complete", "set-lora", "restart"),
    "file": ("slot-save", "slot-restore"),
    "of": ("cancel",),
}
"""Keys that apply to some actions only."""


def scenario_of(mapping: Mapping[str, Any]) -> Scenario:
    """The scenario of a mapping; ScenarioError lists every problem."""
    scenario, problems = checked(mapping)
    if problems or scenario is None:
        raise ScenarioError(*capped([str(problem) for problem in problems]))
    return scenario


def checked(mapping: Mapping[str, Any]) -> tuple[Scenario | None, list[Problem]]:
    """The scenario and its problems, without those that follow from others."""
    scenario, problems = read(mapping)
    if scenario is not None:
        engine = FAMILIES.named(scenario.engine.name)
        scenario = replace(scenario, engine=replace(scenario.engine, name=engine))
        wrong = {removable(problem.path) for problem in problems}
        problems += [
            problem for problem in check(scenario) if not any(_follows(problem, w) for w in wrong)
        ]
    return scenario, problems


def _follows(problem: Problem, wrong: Place) -> bool:
    """True for a problem caused only by the removal of a wrong value."""
    path = problem.path
    inside = path[: len(wrong)] == wrong
    around = bool(path) and wrong[: len(path)] == path
    unknown = bool(problem.about) and wrong in {("spans", problem.about), ("spans",)}
    return inside or around or unknown


def capped(problems: Sequence[str]) -> list[str]:
    """The first problems, and the number of further ones."""
    shown = list(problems[: limits.PROBLEMS])
    more = len(problems) - len(shown)
    return [*shown, f"and {more} more problems"] if more else shown


def check(scenario: Scenario) -> Iterator[Problem]:
    """Problems between the parts of a scenario."""
    if scenario.format == 0:
        yield Problem(("format",), "missing; write format = 1")
    if not scenario.name:
        yield Problem(("name",), "missing; a scenario needs a name")
    if not scenario.step:
        yield Problem(("step",), "missing; a scenario needs at least one [[step]]")
    for name, model in scenario.networks.items():
        yield from _model(scenario, model, ("models", name) if name else ("model",))
    yield from _models(scenario)
    yield from _engine(scenario)
    for index, name in enumerate(scenario.images):
        if not isinstance(scenario.spans.get(name), int):
            text = f"{short(name)} is no drawn span; write its number of tokens under [spans]"
            yield Problem(("images", index), text)
    family = FAMILIES.get(scenario.engine.name)
    if scenario.images and family is not None and not family.takes_images:
        yield Problem(("images",), f"have no place here: {family.name} takes text alone")
    yield from _steps(scenario)
    yield from _fields(scenario)
    yield from _sizes(scenario)
    yield from promises(scenario)


def _model(scenario: Scenario, model: Model, path: Place) -> Iterator[Problem]:
    family = FAMILIES.get(scenario.engine.name)
    if model.preset is None and model.layers is None:
        yield Problem(path, "needs a preset or layers")
    elif model.preset is not None and model.layers is not None:
        yield Problem((*path, "layers"), "has no place beside a preset; keep one of the two")
    elif model.preset is not None and model.preset not in ALL_PRESETS:
        known = tuple(ALL_PRESETS)
        hint = nearest(model.preset, known) or f"; there are {', '.join(known)}"
        yield Problem((*path, "preset"), f"there is no preset {short(model.preset)}{hint}")
    else:
        yield from _measures(scenario, model, path)
    if model.family is not None and family is not None and family.check_model is None:
        text = f"has no place here: {family.name} serves all models by the same rules"
        yield Problem((*path, "family"), text)


def _measures(scenario: Scenario, model: Model, path: Place) -> Iterator[Problem]:
    family = FAMILIES.get(scenario.engine.name)
    try:
        spec = spec_of(model)
        if family is not None:
            family.check(spec)
    except OptionError as error:
        yield Problem((*path, "family"), str(error))
        return
    except InputError as error:
        yield Problem(path, str(error))
        return
    if model.window is not None and "window" not in spec.layers:
        which = f"preset {model.preset!r} has" if model.preset else "there is"
        yield Problem((*path, "window"), f"has no meaning: {which} no layer with a window")


def _models(scenario: Scenario) -> Iterator[Problem]:
    """Further models have the tokens of the first, on a server of several."""
    family, first = FAMILIES.get(scenario.engine.name), _spec_or_plain(scenario.model)
    for text in scenario.engine.profiles if scenario.models else ():
        if family is None or wrong_profile(scenario.engine.name, text):
            continue
        profile = full_profile(scenario.engine.name, text)
        if not family.serves_models(family.rules(profile)):
            yield Problem(("models",), f"have no place here: {profile} serves one model")
    for name, model in scenario.models.items():
        spec = _spec_or_plain(model)
        if (spec.vocabulary, spec.recall) != (first.vocabulary, first.recall):
            text = f"must have the vocabulary of [model], {first.vocabulary} tokens"
            yield Problem(("models", name), f"{text}, and recall words if it does")


def _beyond_limits(scenario: Scenario) -> dict[str, int]:
    """Options above the limit of a scenario, each with the limit."""
    limited = {"ctx_size": limits.CONTEXT, "parallel": limits.SLOTS}
    given = {key: scenario.engine.options.get(key, 1) for key in limited}
    return {
        key: limited[key]
        for key, value in given.items()
        if isinstance(value, int) and value > limited[key]
    }


def _engine(scenario: Scenario) -> Iterator[Problem]:
    name = scenario.engine.name
    if not name:
        yield Problem(("engine", "name"), "missing; say which server answers")
    elif name not in FAMILIES:
        known = sorted(FAMILIES)
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        yield Problem(("engine", "name"), f"there is no engine {short(name)}; {hint}")
    for key, most in _beyond_limits(scenario).items():
        value = scenario.engine.options[key]
        text = f"is {value}; a scenario's server may have at most {most}"
        yield Problem(("engine", "options", key), text)
    for index, text in enumerate(scenario.engine.profiles):
        if problem := wrong_profile(name, text):
            yield Problem(("engine", "profiles", index), problem)
    yield from _options(scenario)


def _options(scenario: Scenario) -> Iterator[Problem]:
    spec, reported = _spec_or_plain(scenario.model), {*_beyond_limits(scenario)}
    engine = scenario.engine.name
    for text in scenario.engine.profiles:
        if wrong_profile(engine, text) or full_profile(engine, text).engine not in FAMILIES:
            continue
        profile = full_profile(engine, text)
        family, own = family_of(profile.engine), profile.engine == engine
        taken = family.taken(engine, scenario.engine.options)
        for key, value in taken.items():
            # An option of the engine below may have no flag here: the server's rules judge it.
            hidden = own and _error_of(partial(family.refuse_internal, profile, {key: value}))
            problem = hidden or refused_option(profile, spec, key, value)
            needs = problem and not hidden and partner_of(profile, spec, taken, key)
            if problem and not needs and key not in reported:
                reported.add(key)
                yield Problem(("engine", "options", key), problem)


def _spec_or_plain(model: Model) -> ModelSpec:
    try:
        return spec_of(model)
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
        if step.model and step.model not in scenario.models:
            known = tuple(scenario.models)
            hint = nearest(step.model, known) or f"; there are {', '.join(known) or 'none'}"
            yield Problem((*path, "model"), f"there is no model {short(step.model)}{hint}")
        if step.do == "complete" and step.prompt is None and not step.messages:
            yield Problem(path, "needs a prompt or messages")
        if step.prompt is not None and step.messages:
            yield Problem((*path, "messages"), "have no place beside a prompt; keep one of the two")
        for key in NEEDS[step.do]:
            if getattr(step, key) is None:
                yield Problem((*path, key), f"missing; {step.do} needs it")
        for key, actions in ONLY_FOR.items():
            if step.do not in actions and getattr(step, key) not in (None, "", (), {}):
                yield Problem((*path, key), f"has no meaning for do = {step.do!r}")
        yield from _endpoint(step, path)
        for number, turn in enumerate(step.messages):
            if not turn.role:
                yield Problem((*path, "messages", number, "role"), 'missing; write role = "user"')
        options = scenario.engine.options
        if scenario.step[index].drafts and all(
            options.get(key, "none") == "none" for key in COMPANIONS
        ):
            text = "have no meaning: no companion proposes them; set one of engine.options"
            yield Problem(("step", index, "drafts"), f"{text} {' or '.join(COMPANIONS)}")
        yield from _cancel(scenario, index, group - {names[index]})
        yield from _references(scenario, index, names, group)
        yield from _pictures(scenario, index)


def _fields(scenario: Scenario) -> Iterator[Problem]:
    """Request fields that a listed profile lacks, or with values that it does not take."""
    profiles = [
        full_profile(scenario.engine.name, text)
        for text in scenario.engine.profiles
        if not wrong_profile(scenario.engine.name, text)
    ]
    for index, step in enumerate(scenario.step):
        if step.do == "set-lora":
            for key in step.options.keys() - {"lora"}:
                text = "has no meaning for set-lora; write options = { lora = [...] }"
                yield Problem(("step", index, "options", key), text)
        for key, value in step.options.items() if step.do == "complete" else ():
            for profile in (profile for profile in profiles if profile.engine in FAMILIES):
                try:
                    family_of(profile.engine).read_fields(profile, {key: value})
                except InputError as error:
                    yield Problem(("step", index, "options", key), str(error))
                    break


def _pictures(scenario: Scenario, index: int) -> Iterator[Problem]:
    """An image is sent whole, and in a prompt."""
    for key, words in pieces(scenario.step[index]).items():
        for word in words:
            name, piece = piece_of(word)
            if name in scenario.images and (key != "prompt" or piece != slice(None)):
                text = f"{word!r} is an image; write all of it, in a prompt"
                yield Problem(("step", index, key), text)


def _pieces(step: Step, path: Place, lengths: Mapping[str, int]) -> Iterator[Problem]:
    """Slices that reach beyond their span; Python's own would be empty."""
    for key, words in pieces(step).items():
        for word in words:
            name, piece = piece_of(word)
            start, end = piece.start or 0, piece.stop
            if end is not None and start >= end:
                yield Problem((*path, key), f"{word!r} is empty: {start} is not below {end}")
            elif max(start, end or 0) > lengths.get(name, max(start, end or 0)):
                text = f"{word!r} reaches beyond the {lengths[name]} tokens of {name!r}"
                yield Problem((*path, key), text)


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
        for word in (word for word in words if word not in known):
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
    """Upper bound of each step's tokens: its prompt and one reply."""
    lengths = {
        name: value if isinstance(value, int) else len(value)
        for name, value in scenario.spans.items()
    }
    context = _context(scenario)
    for index, step in enumerate(scenario.step):
        prompt = _length(step.prompt, lengths) + _length(step.suffix, lengths)
        prompt += sum(_content(message, lengths) for message in step.messages)
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
        specs = [spec_of(network) for network in scenario.networks.values()]
    except InputError:  # reported of the model
        return
    if _beyond_limits(scenario):  # reported of the option
        return
    slots = scenario.engine.options.get("parallel", 1)
    slots = max(4, slots) if isinstance(slots, int) else 4
    cells = context + min(total, limits.TOTAL_TOKENS)
    needed = sum(limits.bytes_needed(spec, cells=cells, slots=slots) for spec in specs)
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
        lists += [(("step", index, "drafts"), draft) for draft in step.drafts or ()]
        if step.messages and size != 512:
            text = "need the tokenizer's vocabulary of 512"
            yield Problem(("step", index, "messages"), text)
    for path, tokens in lists:
        if isinstance(tokens, tuple) and tokens and max(tokens) >= size:
            text = f"token {max(tokens)} is outside the vocabulary of {size}"
            yield Problem(path, text)


def promises(scenario: Scenario) -> Iterator[Problem]:
    """Expectations of profiles or steps that do not exist, or with too many items."""
    for index, expect in enumerate(scenario.expect):
        path: Place = ("expect", index)
        if expect.profile is not None:
            yield from _listed(scenario, expect.profile, (*path, "profile"))
        steps = len(scenario.step)
        for key in ("cached", "least", "processed", "answer", "error", "checkpoints"):
            value = getattr(expect, key)
            if isinstance(value, tuple) and len(value) != steps:
                text = f"has {len(value)} items for {steps} steps; write one per step"
                yield Problem((*path, key), text)
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
    known = {str(full_profile(engine, name)) for name in listed if not wrong_profile(engine, name)}
    if known and str(full_profile(engine, text)) not in known:
        yield Problem(path, f"{text!r} is not among engine.profiles{nearest(text, listed)}")


def _profile_for(scenario: Scenario, text: str) -> Profile | None:
    """The profile of a text on this scenario; None for another engine's."""
    engine = scenario.engine.name
    if "@" in text:
        profile = Profile.parse(text)
        own = {engine, *(full_profile(engine, name).engine for name in scenario.engine.profiles)}
        return profile if profile.engine in own else None
    family = FAMILIES.get(engine)
    release = text.partition("+")[0]
    if family is None or family.current_name(release) not in family.names():
        return None
    return full_profile(engine, text)


def chosen_profiles(scenario: Scenario, wanted: Sequence[str]) -> list[Profile]:
    """The requested profiles of the scenario's engine."""
    profiles = (_profile_for(scenario, text) for text in wanted)
    return [profile for profile in profiles if profile is not None]


def misfits(scenario: Scenario, profiles: Sequence[str]) -> list[str]:
    """Problems of a scenario on these profiles, such as options that they lack."""
    engine = replace(scenario.engine, profiles=tuple(profiles))
    problems = check(replace(scenario.without_promises(), engine=engine))
    return capped([e.text if e.path[:2] == ("engine", "profiles") else str(e) for e in problems])
