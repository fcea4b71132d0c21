"""The server behind a log: release, flags, model; each from the log, from the user, or assumed."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cachesim.engines.family import Family, Profile, family_of
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.option import Option
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import ModelSpec, Sizes
from cachesim.why.infer.sizes import sizes_of
from cachesim.why.read.lines import JUNE, MAY, STYLES
from cachesim.why.read.observed import IK, MLX, PYTHON, How, Observed, ServerLog

RELEASES: Final[Mapping[str, int]] = {
    release.name: int(release.name.removeprefix("b")) for release in FAMILY.releases
}
"""Releases whose rules are known, and their build numbers."""

MOST_CONTEXT: Final = 1 << 22
"""Most cells of a replayed server: about 32 bytes each."""

ARCHITECTURES: Final = (
    ("hybrid-delta", r"qwen3-?next|qwen3\.?[5-9]|qwen35|kimi-?linear"),
    ("hybrid-swa", r"lfm2-?swa|lfm2_swa"),
    ("hybrid", r"granite-?4|granite-?hybrid|nemotron-?h|nemotron-?3|jamba|falcon-?h1|plamo2|lfm2"),
    ("recurrent", r"mamba|rwkv"),
    ("swa", r"gemma|gpt-?oss|cohere2|command-?[ar]|exaone|llama-?4|olmo-?3|phi-?3|mimo"),
    ("dense", r"llama|qwen|mistral|deepseek|glm|phi|olmo|granite|minimax|kimi|starcoder|yi-"),
)
"""Kind of a model's memory, by its architecture or file name."""

OUTSIDE: Final = re.compile(r"^-?\d+$")


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag or fact with its source."""

    value: Any
    how: How | str


UNKNOWN_MODEL: Final = Setting("dense", "assumed")


@dataclass(slots=True)
class Settings:
    """Settings of the replay's server."""

    release: Setting
    preset: Setting
    window: Setting
    options: dict[str, Setting] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    build: int | None = None
    sizes: Sizes | None = None
    model_file: str = ""
    inferred: str = ""  # reason for the preset, where the log's own lines give none
    engine: str = FAMILY.name

    @property
    def is_played(self) -> bool:
        return self.engine == FAMILY.name

    @property
    def profile(self) -> str:
        name = f"{self.engine}@{self.release.value}" if self.release.value else self.engine
        return "+".join((name, *self.patches))

    @property
    def values(self) -> dict[str, Any]:
        """The options alone."""
        return {
            name: option.value for name, option in self.options.items() if option.value is not None
        }

    @property
    def spec(self) -> ModelSpec:
        """The model's memory."""
        changes: dict[str, Any] = {}
        if self.window.value:
            changes["window"] = int(self.window.value)
        if self.sizes is not None:
            changes["sizes"] = self.sizes
        return preset(str(self.preset.value), **changes)


def settings_of(
    log: ServerLog,
    *,
    profile: str | None = None,
    model: str | None = None,
    window: int | None = None,
    given: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from the log, else from the user, else assumed."""
    printed = log.facts.get("build", "0")
    named = log.facts.get("named", "0") if printed == "0" else printed
    build = int(named) if named != "0" else None
    engine, of_engine, _ = (profile or "").partition("@")
    if of_engine and engine != log.engine:
        raise InputError(f"--profile {profile}: the log is of {log.engine}; name a release of it")
    if log.engine != FAMILY.name:
        return _printed_only(log, build, profile, model, window)
    release, patches = _release(log, build, profile)
    kind, seen = _model(log, model)
    settings = Settings(
        release=release,
        preset=kind,
        window=seen if window is None else Setting(window, "given"),
        patches=patches,
        build=build,
        model_file=log.facts.get("loading", "").rsplit("/", 1)[-1],
    )
    settings.options = _options(log, str(release.value))
    for name, value in _command(log.facts.get("command", "")).items():
        settings.options[name] = Setting(value, "printed")
    for name, value in (given or {}).items():
        settings.options[name] = Setting(value, "given")
    context = settings.values.get("ctx_size", 0)
    if isinstance(context, int) and context > MOST_CONTEXT:
        msg = f"the log has a context of {context} cells; up to {MOST_CONTEXT} are simulated"
        raise InputError(msg)
    settings.sizes = sizes_of(log, settings.spec)
    return settings


def _printed_only(
    log: ServerLog, build: int | None, profile: str | None, model: str | None, window: int | None
) -> Settings:
    """Settings of another engine, whose lines have few flags and which is not replayed."""
    if log.engine not in {IK, MLX, PYTHON}:  # no release of it is replayed under this name
        return Settings(
            release=Setting("", "printed"),
            preset=UNKNOWN_MODEL if model is None else Setting(model, "given"),
            window=Setting(window, "given" if window is not None else "assumed"),
            engine=log.engine,
        )
    family = family_of(log.engine)
    commit = log.facts.get("commit", "")[:7]
    names = [release.name for release in family.releases]
    known = next((name for name in names if commit and name.startswith(commit)), "")
    release = Setting(known or names[-1], "printed" if known else "assumed")
    if profile is not None:
        release = Setting(profile.partition("@")[2] or profile, "given")
    kind, seen = _model(log, model)
    slots = int(log.facts.get("slots", log.facts.get("slots-opened", "0")))
    options = {"parallel": Setting(slots, "printed")} if slots and log.engine == IK else {}
    if log.engine == PYTHON:
        sizes = {"n_ctx", "n_batch", "n_ubatch"} & log.facts.keys()
        options = {size: Setting(int(log.facts[size]), "printed") for size in sizes}
        if "swa-cells" in log.facts:
            options["swa_full"] = Setting("swa-full" in log.facts, "printed")
    return Settings(
        release=release,
        preset=kind,
        window=seen if window is None else Setting(window, "given"),
        options=options,
        build=build,
        model_file=log.facts.get("model-file", log.facts.get("loading", "")).rsplit("/", 1)[-1],
        engine=family.name,
    )


def _release(
    log: ServerLog, build: int | None, profile: str | None
) -> tuple[Setting, tuple[str, ...]]:
    if profile is not None:
        name = profile.removeprefix("llama.cpp@")
        release, *patches = name.split("+")
        return Setting(release, "given"), tuple(patches)
    if build is not None:
        nearest = min(RELEASES, key=lambda name: (abs(RELEASES[name] - build), name))
        return Setting(nearest, "printed" if RELEASES[nearest] == build else "assumed"), ()
    for style in STYLES:
        if style.name in log.styles:
            return Setting(style.release, "bounded"), ()  # or a release before or after it
    if "timed-progress" in log.facts:  # June's lines too; a log of today is likelier
        return Setting(STYLES_OF_LLAMA[0].release, "assumed"), ()
    silent = JUNE if "verbosity" in log.facts else MAY  # June was the first to print its level
    return Setting(silent.release, "assumed"), ()


STYLES_OF_LLAMA: Final = [style for style in STYLES if style.release]


def alike(release: str) -> Iterator[str]:
    """Other releases whose logs may have the words of this one's style, the newest first."""
    own = [RELEASES[style.release] for style in STYLES if style.release]
    at = max(at for at, build in enumerate(own) if build >= RELEASES[release])
    for name, build in sorted(RELEASES.items(), key=lambda named: -named[1]):
        before = at + 1 == len(own) or own[at + 1] < build
        if before and name != release and (at == 0 or build < own[at - 1]):
            yield name


def kind_of(name: str) -> str | None:
    """The preset with the memory of a model of this name."""
    for kind in sorted(PRESETS, key=len, reverse=True):
        if name.startswith(kind):
            return kind
    for kind, shape in ARCHITECTURES:
        if re.search(shape, name.lower()):
            return kind
    return None


def _model(log: ServerLog, given: str | None) -> tuple[Setting, Setting]:
    window = _window(log)
    if given is not None:
        if given not in PRESETS:
            known = ", ".join(PRESETS)
            raise InputError(f"--model {given}: there is no such preset; there are {known}")
        return Setting(given, "given"), window
    name = log.facts.get("architecture", "")
    kind = kind_of(name) if name else None
    how = "computed"
    if kind is None:
        kind = kind_of(log.facts.get("loading", "").rsplit("/", 1)[-1].removesuffix(".gguf"))
        how = "assumed"
    if "draft-mtp" in log.facts and kind in {None, "hybrid-delta"}:
        return Setting("hybrid-mtp", "computed"), window
    seen = _seen_of_memory(log, window)
    if "rs-size" in log.facts and kind not in RECURRENT:
        kind, how = ("hybrid" if "kv-size" in log.facts else "recurrent"), "computed"
    elif seen is not None and kind not in seen:
        kind, how = seen[0], "bounded" if len(seen) < len(LIMITED) else "assumed"
    if kind == "hybrid" and (window.value or 0) > 1:
        kind = "hybrid-swa"
    if kind is None:
        return UNKNOWN_MODEL, window
    return Setting(kind, how), window


RECURRENT: Final = ("hybrid", "recurrent", "hybrid-delta", "hybrid-swa", "hybrid-mtp")
"""Presets whose memory has states, each of one position."""

WINDOWED: Final = ("swa", "hybrid-swa")
LIMITED: Final = ("hybrid", "swa", *RECURRENT[1:])
"""Presets whose memory cannot roll back to any position, the likeliest first."""


def _seen_of_memory(log: ServerLog, window: Setting) -> tuple[str, ...] | None:
    """The presets that a log's lines allow; None without lines about memory.

    Only memory that cannot go back has checkpoints, and is re-processed in full; but b9294 also if
    memory reaches back to position 0 and one token matches, as of a prompt of one token.
    """
    spans = [span for request in log.requests for span in request.spans]
    if any(low == high > 0 for low, high in spans):
        return RECURRENT
    limited = any(
        r.created
        or r.dropped
        or r.restored is not None
        or r.refused_cut
        or (r.forced and not r.keeps_all and _shares_more_than_one(r))
        for r in log.requests
    )
    if not limited:
        return None
    if any(request.refused_cut for request in log.requests):
        return RECURRENT
    if (window.value or 0) > 1 or any(0 <= low < high for low, high in spans):
        return WINDOWED
    return LIMITED


def _shares_more_than_one(request: Observed) -> bool:
    """True unless a prompt and its slot have one token in common at most, by a printed ratio."""
    ratio = request.sim if request.sim is not None else request.search.sim
    whole = prompt_length(request.n_tokens, request.held_after, request.generated)
    return ratio is None or whole is None or round(_ratio(ratio) * whole) > 1


def _window(log: ServerLog) -> Setting:
    seen = Counter(r.swa for r in log.requests if r.swa)
    if seen:
        return Setting(seen.most_common(1)[0][0], "printed")
    printed = int(log.facts.get("n_swa", "0"))
    return Setting(printed or None, "printed" if printed else "assumed")


def _options(log: ServerLog, release: str) -> dict[str, Setting]:
    facts = log.facts
    options: dict[str, Setting] = {}
    slots = int(facts.get("slots", facts.get("slots-opened", "0")))
    how = "printed"
    if not slots:
        slots, how = max((r.slot for r in log.requests), default=0) + 1, "computed"
    options["parallel"] = Setting(max(1, slots), how)
    unified = _unified(log, slots)
    if slots > 1:
        options["kv_unified"] = unified
    options["ctx_size"] = _context(log, slots, unified=bool(unified.value))
    if "n_ubatch" in facts:
        options["ubatch_size"] = Setting(int(facts["n_ubatch"]), "printed")
        options["batch_size"] = Setting(int(facts.get("n_batch", "2048")), "printed")
    else:
        options |= _batches(log)
    if "cache-off" in facts or "idle-needs-cache" in facts:
        options["cache_ram"] = Setting(0, "printed")
    elif "cache-mib" in facts:
        limit = facts["cache-mib"]
        options["cache_ram"] = Setting(int(limit) if OUTSIDE.match(limit) else -1, "printed")
    elif "cache-limit-mib" in facts:
        mib = int(float(facts["cache-limit-mib"]))
        options["cache_ram"] = Setting(mib or -1, "printed")
    if "checkpoints" in facts:
        options["ctx_checkpoints"] = Setting(int(facts["checkpoints"]), "printed")
    elif "checkpoints-off" in facts:
        options["ctx_checkpoints"] = Setting(0, "printed")
    if "min-step" in facts and release in FAMILY.having(FAMILY.option("checkpoint_min_step")):
        options["checkpoint_min_step"] = Setting(int(facts["min-step"]), "printed")
    options |= _idle_slots(log, release, unified=bool(unified.value))
    return options | _threshold(log) | _features(log, release)


def _idle_slots(log: ServerLog, release: str, *, unified: bool) -> dict[str, Setting]:
    """A server that starts with a prompt cache says whether idle slots are saved there."""
    option, selection = (
        FAMILY.option("cache_idle_slots"),
        FAMILY.rules(Profile(FAMILY.name, release)).selection,
    )
    saves = unified or not selection.idle_save_needs_unified
    if "cache-mib" not in log.facts or "idle-saved" in log.facts or not saves:
        return {}
    if release not in FAMILY.having(option):
        return {}
    return {option.name: Setting(value=False, how="computed")}


def _features(log: ServerLog, release: str) -> dict[str, Setting]:
    options: dict[str, Setting] = {}
    if "swa-full" in log.facts:
        options["swa_full"] = Setting(value=True, how="printed")
    moved = [size for r in log.requests for _, _, size in r.moved]
    if moved and release in FAMILY.having(FAMILY.option("cache_reuse")):
        options["cache_reuse"] = Setting(min(moved), "assumed")  # or less
    if any(r.shifts for r in log.requests):
        options["context_shift"] = Setting(value=True, how="computed")
    return options


def _unified(log: ServerLog, slots: int) -> Setting:
    facts = log.facts
    if "kv_unified" in facts:
        return Setting(facts["kv_unified"] == "true", "printed")
    if "idle-needs-unified" in facts:
        return Setting(value=False, how="printed")
    if "cleared" in facts.get("idle-saved", ""):
        return Setting(value=True, how="printed")
    total, one = facts.get("cache-limit-tokens"), facts.get("n_ctx_slot")
    if total is not None and one is not None and slots > 1:
        return Setting(total == one, "computed")
    return Setting(slots == 4, "assumed")


def _context(log: ServerLog, slots: int, *, unified: bool) -> Setting:
    facts = log.facts
    for name in ("n_ctx", "cache-limit-tokens"):
        if name in facts and int(facts[name]) > 0:
            return Setting(int(facts[name]), "printed")
    if "n_ctx_slot" in facts:
        return Setting(int(facts["n_ctx_slot"]) * (1 if unified else max(1, slots)), "computed")
    parts = 1 if unified else max(1, slots)
    whole = int(facts.get("n_ctx_of_prompt", "0")) * parts
    if 0 < whole <= MOST_CONTEXT:  # how many slots share it, no line of an excerpt says
        return Setting(whole, "assumed")
    longest = max(((r.held_after or 0) + (r.n_tokens or 0) for r in log.requests), default=0)
    return Setting(max(131_072, longest) * max(1, slots), "assumed")


def _batches(log: ServerLog) -> dict[str, Setting]:
    """The ubatch size, inferred from checkpoints: one is saved at the prompt's end less 4 and a
    ubatch.
    """
    distances: Counter[int] = Counter()
    for request in log.requests:
        whole = prompt_length(request.n_tokens, request.held_after, request.generated)
        if whole is None or request.shifts:
            continue
        for place in {n for _, _, n in request.created}:
            if is_usual_ubatch(whole - 4 - place):
                distances[whole - 4 - place] += 1
    if distances:
        size, count = distances.most_common(1)[0]
        if count > 1:
            return {"ubatch_size": Setting(size, "computed")}
    return {}


def is_usual_ubatch(size: int) -> bool:
    """True for a usual ubatch size, rather than the length of a message."""
    return size >= 8 and (size & (size - 1) == 0 or size % 64 == 0)


def prompt_length(
    n_tokens: int | None, held_after: int | None, generated: int | None
) -> int | None:
    """The prompt's tokens: as printed, or the slot's less the generated ones.

    None if the slot's are fewer: lines are missing, and the two numbers are of two requests.
    """
    if n_tokens is not None:
        return n_tokens
    if held_after is None or generated is None:
        return None
    whole = held_after - max(0, generated - 1)
    return whole if whole >= 0 else None


def _threshold(log: ServerLog) -> dict[str, Setting]:
    for request in log.requests:
        if request.threshold is not None:
            return {"slot_prompt_similarity": Setting(float(request.threshold), "printed")}
    highest = 0.0
    for request in log.requests:
        if request.choice == "age" and request.search.sim is not None:
            highest = max(highest, _ratio(request.search.sim))
    if highest > 0.1:
        return {"slot_prompt_similarity": Setting(0.0, "computed")}
    return {}


def _ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


FLAGS: Final[Mapping[str, Option]] = {
    flag: option for option in FAMILY.declared for flag in option.flag.replace(" ", "").split(",")
}
"""Command-line spelling of each option."""


def _command(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    found: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, _, value = word.partition("=")
        plain = flag.replace("--no-", "--", 1).replace("-no-", "-", 1)
        option = FLAGS.get(flag) or FLAGS.get(plain)
        if option is None:
            continue
        if isinstance(option.default, bool):
            found[option.name] = flag == plain
        elif re.fullmatch(r"-?\d+", value or following):
            found[option.name] = int(value or following)
        elif re.fullmatch(r"-?\d*\.\d+", value or following):
            found[option.name] = float(value or following)
    return {name: value for name, value in found.items() if name != "ctx_size" or value > 0}


def matters(family: Family[Any, Any], release: str, spec: ModelSpec, name: str) -> bool:
    """True if a flag can matter for a release and a model."""
    if release not in family.having(family.option(name)):
        return False
    kinds = set(spec.layers)
    if name in {"ctx_checkpoints", "checkpoint_min_step", "ubatch_size"}:
        return kinds != {"attention"}
    return name != "swa_full" or "window" in kinds


def flag_of(family: Family[Any, Any], name: str, value: object, release: str) -> str:
    """A flag as on the server's command line; empty if it has none.

    Without a release it is spelled as the newest does.
    """
    option = family.option(name)
    flag = family.flag_at(option, release).split(", ")[-1]
    if not flag or option.internal:
        return ""
    if option.spelled:
        return option.spelled.get(value, "").format(flag=flag)
    if ":" in flag:  # a key of a flag's value
        return f"{flag}={value}"
    if not flag.startswith("-"):  # an argument of a Python class
        return f"{flag}={value}"
    if isinstance(value, bool):
        off = flag.replace("--", "--no-", 1) if option.switches_off else ""
        return flag if value else off
    return f"{flag} {value}"


def setting(family: Family[Any, Any], name: str, value: object, release: str = "") -> str:
    """A setting in words: its flag, or that a flag without an opposite is left out."""
    flag = flag_of(family, name, value, release)
    return flag or f"without {flag_of(family, name, value=True, release=release)}"
