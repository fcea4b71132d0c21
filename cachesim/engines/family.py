"""`Family`: the facts about an engine that tools use, as one value.

Package and features of a server family, its releases and patches (`family.py`) and its options
(`option.py`).

An engine's package declares its value in `family.py`; `cachesim.engines` registers it. There is no
other list of engines, releases, patches or options. The values are plain data: they import neither
arrays nor an engine.
"""

import importlib
import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, cast

from cachesim.engines.fields import Field
from cachesim.engines.former import TAKEN_BACK, former_patches, signed, today
from cachesim.engines.option import Option, options_by_name, options_of
from cachesim.engines.search import R, S, Search
from cachesim.errors import OptionError, ProfileError, SpecError
from cachesim.typed import Value

if TYPE_CHECKING:
    from cachesim.model.spec import ModelSpec


def did_you_mean(name: str, known: Iterable[str], *, alike: float = 0.7) -> str:
    """`did you mean 'x'?` for a similar known name, else an empty text."""
    near = get_close_matches(name, list(known), n=1, cutoff=alike)
    return f"did you mean {near[0]!r}?" if near else ""


def near_release(name: str, known: tuple[str, ...]) -> str:
    """The releases next to an unknown one if numbered alike; else a similar name, or all."""
    neighbours = list(_beside(name, known))
    if neighbours:
        return (
            f"the nearest are {' and '.join(neighbours)}"
            if len(neighbours) > 1
            else (f"the nearest is {neighbours[0]}")
        )
    return did_you_mean(name, known) or f"there are {', '.join(known)}"


def _beside(name: str, known: tuple[str, ...]) -> Iterator[str]:
    alike = {_numbers(other): other for other in known if _form(other) == _form(name)}
    wanted = _numbers(name)
    below = [numbers for numbers in alike if numbers < wanted]
    above = [numbers for numbers in alike if numbers > wanted]
    if wanted and below:
        yield alike[max(below)]
    if wanted and above:
        yield alike[min(above)]


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(digits[:18]) for digits in re.findall(r"\d+", name))


def _form(name: str) -> str:
    return re.sub(r"\d+", "#", name)


Rules: TypeAlias = Any
"""The rules of any engine, a part or a field of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """The package of a real release: its version, and the packages it is installed with."""

    name: str
    version: str
    beside: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages to install."""
        return (*self.beside, f"{self.name}=={self.version}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Generic[R]):
    """A release: its rules, and their source."""

    name: str
    about: str
    rules: R
    date: str = ""
    upstream: str = ""  # the tag or commit whose code the rules follow; the release itself if empty
    aliases: tuple[str, ...] = ()  # builds under another number with the same cache logic
    package: Package | None = None

    @property
    def follows(self) -> str:
        """The tag or commit whose code the rules follow."""
        return self.upstream or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch(Generic[R]):
    """A proposed, foreign or merged change, laid over the rules of a release.

    A merged patch can be reverted on the releases that have it: `b11549-28302`.
    """

    about: str
    fits: tuple[str, ...]
    lay: Callable[[R], R]
    pull: int = 0  # pull request; 0: cachesim's own, or unknown
    name: str = ""  # if not the number of the pull request
    perhaps: tuple[int, ...] = ()  # candidate pull requests, if none is confirmed
    landed: str = ""  # the first release that has it
    back: Callable[[R], R] | None = None  # reverts a merged patch
    cures: str = ""  # the wrong answers that it fixes, by cause
    server: bool = False  # the rules of another server, about which a wrong answer is a claim
    repository: str = ""  # where it was proposed, if it is a change of the engine below

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", str(self.pull))


def tagged(name: str, date: str, rules: R, about: str, package: str) -> Release[R]:
    """A release whose tag and package version are its number."""
    return Release(
        name=name,
        about=about,
        rules=rules,
        date=date,
        upstream=f"v{name}",
        package=Package(name=package, version=name),
    )


def laying(**changes: Rules) -> Callable[[Rules], Rules]:
    """A patch that sets fields of the rules; a mapping sets fields of the named part."""

    def lay(rules: Rules) -> Rules:
        return replace(
            rules,
            **{name: _replaced(getattr(rules, name), change) for name, change in changes.items()},
        )

    return lay


def _replaced(before: Rules, change: Rules) -> Rules:
    if not isinstance(change, Mapping):
        return change
    return {**before, **change} if isinstance(before, Mapping) else replace(before, **change)


Server: TypeAlias = Any
"""An `Engine`; untyped, so that tables do not import its class."""


Compared: TypeAlias = Literal[
    "run beside the real engine", "run beside the real classes", "read in the source"
]
"""How the rules of an engine were compared."""

BESIDE_ENGINE: Final[Compared] = "run beside the real engine"
"""The same requests were run on the engine of a release."""

BESIDE_CLASSES: Final[Compared] = "run beside the real classes"
"""Its scheduler and caches ran the same requests, without a model or a server."""

READ: Final[Compared] = "read in the source"
"""Nothing of it was run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family(Generic[R, S]):
    """A server family, with all facts that tools use."""

    name: str
    about: str
    repository: str
    package: str  # the engine's package
    engine: str | Callable[..., Any]  # its class, or "module:Class" for an import at first use
    releases: tuple[Release[R], ...]  # oldest first
    options: type[S]
    search: str | Search[R, S] = ""
    """What only searches read, or "module:SEARCH" for an import at first use; see `search.py`."""
    patches: tuple[Patch[R], ...] = ()
    fields: tuple[Option, ...] = ()  # further fields of its requests
    kin: tuple[str, ...] = ()  # engines that this one is built on
    evidence: Compared = BESIDE_ENGINE  # whence its rules are
    loads: Mapping[str, str] = field(default_factory=dict)
    """Presets that its real server loads, and in which sizes; empty: not restricted."""

    has_slots: bool = True  # requests may name a slot
    prompt_field: str = ""  # the request field by which the server extends a prompt
    renders_chats: bool = False  # it takes messages and renders them with its own chat template
    serves_models: Callable[[R], bool] = lambda _: False  # requests may name one of several
    takes_images: bool = False  # its requests may have images
    check_model: Callable[["ModelSpec"], object] | None = None  # refuses unsupported models
    plays_chunks: bool = False  # a layer's window may be the chunk of a token
    plays_compressed: bool = False  # windows may be those of DeepSeek V4's compressors
    groups_layers: bool = False  # the number of layers of each kind decides how a pool is shared
    by_device: Callable[[R, S, Collection[str], int], Mapping[str, int]] = lambda *_: {}
    """Flag -> value that a server chooses by its machine (option `device`), for those that are not
    among the given names; so many tokens are simulated as one."""
    records_provenance: str = ""  # option that disables its record of state contents
    configuration: str = ""
    """The module with `FIELDS`, every field of the engine's own configuration; see `fields.py`."""
    reply_cost: tuple[float, float] = (0.0, 0.0)
    """Estimated seconds per token of a reply in any arithmetic, and further seconds for each token
    before it, for an engine that runs replies token by token."""
    program: str = ""  # the command that starts it
    swept: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Flag -> values to try for a workload that reprocesses too much; see `cachesim why --tune`."""
    swept_factors: Mapping[str, int] = field(default_factory=dict)
    """Flag -> factor; the user's own value times the factor is tried too."""
    describes_model: tuple[str, ...] = ()  # options with the sizes of the model that it counts
    vocabulary: str = ""  # words of its classes, flags and log lines that reports of it use

    def check(self, spec: "ModelSpec") -> None:
        """Refuse a model with layers that the server has no rules for."""
        if spec.compressed and not self.plays_compressed:
            msg = f"{self.name} has no rules for DeepSeek V4's layers: leave `compressed` out"
            raise SpecError(msg)
        if self.check_model is not None:
            self.check_model(spec)
        elif spec.chunked and not self.plays_chunks:
            msg = f"{self.name} has no rules for chunked windows here: leave `chunked` out"
            raise SpecError(msg)

    # -- releases ----------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """The releases' names, oldest first."""
        return tuple(release.name for release in self.releases)

    def since(self, first: str = "", last: str = "") -> tuple[str, ...]:
        """The releases from `first` to `last`; an empty end is open."""
        names = self.names()
        begin = names.index(first) if first else 0
        end = names.index(last) + 1 if last else len(names)
        return names[begin:end]

    def real(self) -> tuple[str, ...]:
        """The releases that a real package runs, oldest first."""
        return tuple(release.name for release in self.releases if release.package is not None)

    def current_name(self, name: str) -> str:
        """The release's name, also for an alias."""
        return next((release.name for release in self.releases if name in release.aliases), name)

    def release(self, name: str) -> Release[R]:
        """A release under any of its names."""
        own = self.current_name(name)
        for release in self.releases:
            if release.name == own:
                return release
        landed = [patch.name for patch in self.patches if patch.landed]
        for known in self.names():  # a change to be taken back, misspelled
            rest = own.removeprefix(f"{known}-")
            hint = did_you_mean(rest, landed)
            if rest != own and hint and rest not in landed:
                raise ProfileError(f"there is no {self.name} patch {rest!r}; {hint}")
        msg = f"there is no {self.name} release {name!r}; {near_release(name, self.names())}"
        raise ProfileError(msg)

    # -- patches -----------------------------------------------------------------------------------

    def patch(self, name: str) -> Patch[R]:
        """A patch by its name."""
        for patch in self.patches:
            if patch.name == name:
                return patch
        known = [patch.name for patch in self.patches]
        hint = did_you_mean(name, known) or f"there are {', '.join(known) or 'none'}"
        raise ProfileError(f"there is no {self.name} patch {name!r}; {hint}")

    def upstream_of(self, patch: Patch[R]) -> str:
        """The pull request of a patch, if known; empty for a patch of cachesim."""
        if patch.pull:
            return f"{patch.repository or self.repository}#{patch.pull}"
        if not patch.landed:
            return ""
        perhaps = " or ".join(f"#{number}" for number in patch.perhaps)
        return f"no pull request confirmed{perhaps and f' (perhaps {perhaps})'}"

    def fitting(self, release: str) -> tuple[str, ...]:
        """The patches that fit a release."""
        return tuple(patch.name for patch in self.patches if release in patch.fits)

    def cures(self, profile: "Profile") -> tuple[Patch[R], ...]:
        """Patches that fix wrong answers of a profile, merged ones first."""
        fits = self.fitting(profile.release)
        mine = (patch for patch in self.patches if not patch.server)
        fitting = (patch for patch in mine if patch.cures and patch.name in fits)
        left = (patch for patch in fitting if patch.name not in profile.patches)
        return tuple(sorted(left, key=lambda patch: not patch.landed))

    def rules(self, profile: "Profile") -> R:
        """The rules of a release with the patches laid over it, in order."""
        return cast("R", _laid(self, profile))

    def lay(self, profile: "Profile") -> R:
        """The rules of a profile, without the cache of `rules`."""
        release = self.release(profile.release)
        rules, laid = release.rules, set()
        for sign in profile.patches:
            name = sign.removeprefix("-")
            patch = self.patch(name)
            if sign != name:
                rules = self._without(patch, release.name)(rules)
                continue
            if release.name not in patch.fits:
                raise ProfileError(self._misfit(patch, release.name))
            if name in laid:
                msg = f"patch {name!r} is laid twice over {self.name}@{release.name}; write it once"
                raise ProfileError(msg)
            laid.add(name)
            rules = patch.lay(rules)
        return rules

    def _misfit(self, patch: Patch[R], release: str) -> str:
        if patch.landed and release in self.since(patch.landed):
            return f"{self.name}@{release} has {patch.name!r} already: it landed in {patch.landed}"
        fits = self.range_of(patch.fits)
        return f"patch {patch.name!r} does not fit {self.name}@{release}; it fits {fits}"

    def range_of(self, releases: tuple[str, ...]) -> str:
        """Releases in words: `b9093, b9538`, or `b8672 to b10809` for a longer range."""
        if len(releases) > 3 and releases == self.since(releases[0], releases[-1]):
            return f"{releases[0]} to {releases[-1]}"
        return ", ".join(releases)

    def _without(self, patch: Patch[R], release: str) -> Callable[[R], R]:
        if patch.back is None:
            msg = f"patch {patch.name!r} was not merged: it can be laid over, and not taken back"
            raise ProfileError(msg)
        having = self.since(patch.landed)
        if release not in having:
            raise ProfileError(
                f"{self.name}@{release} does not have {patch.name!r} to take back; "
                f"it landed in {patch.landed}"
            )
        return patch.back

    # -- options -----------------------------------------------------------------------------------

    @property
    def declared(self) -> tuple[Option, ...]:
        """The server's options, internal ones included."""
        made: Any = self.options
        return options_of(made)

    def option(self, name: str) -> Option:
        """An option or a request field by its name."""
        return next(option for option in (*self.declared, *self.fields) if option.name == name)

    def table(self) -> tuple[Option, ...]:
        """The server's options without internal ones."""
        return tuple(option for option in self.declared if not option.internal)

    def upstream_fields(self) -> tuple[Field, ...]:
        """Every field of the newest release's own configuration."""
        if not self.configuration:
            return ()
        return tuple(importlib.import_module(self.configuration).FIELDS)

    def taken(self, engine: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a scenario of `engine`, without defaults that only an engine below has.

        Every other one is kept: the server takes it, or refuses it.
        """
        if engine not in self.kin:
            return dict(given)
        own = {option.name for option in self.declared}
        below = [option for option in FAMILIES[engine].table() if option.name not in own]
        idle = {option.name: option.default for option in below}
        return {name: value for name, value in given.items() if value != idle.get(name, ...)}

    def read(self, profile: "Profile", given: Mapping[str, Any]) -> S:
        """The options of a server: the given ones, checked, over the release's defaults."""
        made: Any = self.options
        known = options_by_name(made)
        values = dict(_defaults(self, profile.release))
        for name, value in given.items():
            values[name] = self._read_one(profile, known, name, value)
        for name in given:
            self._check_choice(profile, known[name], values[name], values)
        options = self.options(**values)
        chosen = self.by_device(self.rules(profile), options, given.keys(), 1)
        return self.options(**{**values, **chosen}) if chosen else options

    def chosen(
        self, profile: "Profile", given: Mapping[str, Any], *, scale: int = 1
    ) -> Mapping[str, int]:
        """The flags that a server with the given ones chooses by its machine."""
        return self.by_device(self.rules(profile), self.read(profile, given), given.keys(), scale)

    def device_of(self, profile: "Profile", given: Mapping[str, Any]) -> str | None:
        """The machine by which a server with these flags chooses others; None if it does not."""
        if not self.chosen(profile, given):
            return None
        return str(given.get("device", self.option("device").default))

    def chosen_words(self, profile: "Profile", given: Mapping[str, Any]) -> str:
        """The flags that the server chooses by its machine, in words; "" if it chooses none."""
        chosen = self.chosen(profile, given)
        if not chosen:
            return ""
        flags = " and ".join(f"{self.option(name).flag} {value}" for name, value in chosen.items())
        device = given.get("device", self.option("device").default)
        return f"{flags}, as a server chooses with device {device!r}"

    def read_fields(self, profile: "Profile", given: Mapping[str, Any]) -> dict[str, Any]:
        """The further fields of a request, checked."""
        if not given:
            return {}
        known = {option.name: option for option in self.fields}
        values = {
            name: self._read_one(profile, known, name, value, "request field")
            for name, value in given.items()
        }
        for name, value in values.items():
            self._check_choice(profile, known[name], value, values)
        return values

    def refuse_internal(self, profile: "Profile", given: Mapping[str, Any]) -> None:
        """Refuse internal options, with the error for an unknown name."""
        shown = {option.name: option for option in self.table()}
        for name in given:
            if any(option.name == name and option.internal for option in self.declared):
                self._read_one(profile, shown, name, given[name], "option")

    def default(self, option: Option, release: str) -> Value:
        """An option's default at a release: the latest change up to it."""
        names = self.names()
        at = names.index(self.release(release).name)
        value = option.default
        for since in sorted(option.later, key=names.index):
            if names.index(since) <= at:
                value = option.later[since]
        return value

    def flag_at(self, option: Option, release: str) -> str:
        """The flag as a release spells it; as the newest does without one."""
        last, former = option.until_then
        return former if release and last and release in self.since(last=last) else option.flag

    def having(self, option: Option, value: object = None) -> tuple[str, ...]:
        """The releases that have an option, or this choice of it, oldest first."""
        if option.patch:
            return ()
        having = self.since(option.since, option.until)
        if isinstance(value, str) and value in option.arrived:
            arrived = self.since(option.arrived[value])
            having = tuple(choice for choice in having if choice in arrived)
        return having

    def has(self, option: Option, profile: "Profile", value: object = None) -> bool:
        """True if a profile has an option, or this choice of it."""
        if option.patch:
            return option.patch in profile.patches
        if not (option.since or option.until or option.arrived):
            return True  # in every release
        return self.current_name(profile.release) in self.having(option, value)

    def _read_one(
        self,
        profile: "Profile",
        known: Mapping[str, Option],
        name: str,
        value: object,
        what: str = "option",
    ) -> Value:
        option = known.get(name)
        if option is None:
            shown = [option.name for option in known.values() if not option.internal]
            near = did_you_mean(name.replace("-", "_").strip("_"), shown)
            hint = near or f"there are {', '.join(sorted(shown)) or 'none'}"
            msg = f"{self.name}@{profile.release} has no {what} {name!r}; {hint}"
            field = self._upstream_field(name)
            if field is not None and not any(repr(option) in near for option in field.options):
                msg = f"{what} {name!r} ({field.owner} of {self.name}) {field.advice}"
            raise OptionError(msg)
        if not self.has(option, profile):
            raise OptionError(f"{profile} has no {what} {name!r}; {self._where(option)}")
        return option.read(value, what)

    def _check_choice(
        self, profile: "Profile", option: Option, value: object, given: Mapping[str, Any]
    ) -> None:
        """Refuse a choice that the release does not have, beside the other values either."""
        other, first = option.beside.get(str(value), ("", ""))
        beside = bool(given.get(other)) and self.current_name(profile.release) in self.since(first)
        if not (beside or self.has(option, profile, value)):
            where = self._where(option, value)
            raise OptionError(f"{profile} has no {option.name} {value!r}; {where}")

    def _upstream_field(self, name: str) -> Field | None:
        """The field under its name or flag; one that is not simulated before others."""
        plain = name.lstrip("-").replace("-", "_")
        alike = (
            upstream_field
            for upstream_field in self.upstream_fields()
            if plain in {upstream_field.name, upstream_field.flag.lstrip("-").replace("-", "_")}
        )
        return min(alike, key=lambda field: not field.differs, default=None)

    def _where(self, option: Option, value: object = None) -> str:
        if option.patch:
            fits = self.range_of(self.patch(option.patch).fits)
            return f"the patch +{option.patch} adds it, which fits {fits}"
        where = f"the releases that have it are {self.range_of(self.having(option, value))}"
        other, first = option.beside.get(str(value), ("", ""))
        return f"{where}; beside {other}: {self.range_of(self.since(first))}" if other else where

    # -- the engine --------------------------------------------------------------------------------

    def open(self, profile: "Profile", **parts: Any) -> Server:
        """Start a server; its class is imported here."""
        engine = self.engine
        made = loaded(self.name, engine) if isinstance(engine, str) else engine
        return made(profile, family=self, **parts)


Declared: TypeAlias = Any
"""A class or value of an engine's package; untyped, so that tables do not import it."""


def loaded(engine: str, name: str) -> Declared:
    """What an engine declares as `module:name`, imported now."""
    module, _, own = name.partition(":")
    try:
        return getattr(importlib.import_module(module), own)
    except Exception as error:
        if module.startswith("cachesim."):
            raise
        msg = f"{engine}: {name} cannot be loaded: {type(error).__name__}: {error}"
        raise ProfileError(msg) from error


@lru_cache(maxsize=256)
def _laid(family: Family[R, S], profile: "Profile") -> R:
    return family.lay(profile)


@lru_cache(maxsize=256)
def _defaults(family: Family[R, S], release: str) -> Mapping[str, Value]:
    made: Any = family.options
    later = (option for option in options_of(made) if option.later)
    return MappingProxyType({option.name: family.default(option, release) for option in later})


def _letters(name: str) -> str:
    """A name without what people write differently: cases, spaces, points and hyphens."""
    return re.sub(r"[\W_]+", "", name).casefold()


class Families(MutableMapping[str, Family[Any, Any]]):
    """Families by name; an announced one is imported at its first lookup.

    Importing all of them takes longer than most commands. Those of other packages (`plugins.py`)
    are looked for once, when another name is asked for or all are listed.
    """

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}  # in the order of announcement
        self._spelled: dict[str, str] = {}  # letters and digits of a further spelling -> name
        self._loaded: dict[str, Family[Any, Any]] = {}
        self._searched = False
        self.broken: dict[str, str] = {}  # installed engines that cannot be loaded, and why

    def _search(self) -> None:
        if not self._searched:
            self._searched = True
            self.broken = importlib.import_module("cachesim.engines.plugins").discover(self)

    def announce(self, name: str, module: str, *spellings: str) -> None:
        """Add an engine whose `module` defines FAMILY, and what else people call it."""
        self._homes[name] = module
        self._spelled |= dict.fromkeys(map(_letters, spellings), name)

    def named(self, text: str) -> str:
        """The engine of a name as people type it: `LM Studio` is `lm-studio`; else the text."""
        if text in self._homes:
            return text
        wanted = _letters(text)
        alike = (name for name in self._homes if _letters(name) == wanted)
        return self._spelled.get(wanted) or next(alike, text)

    def __getitem__(self, name: str) -> Family[Any, Any]:
        if name not in self._homes:
            self._search()
        if name not in self._loaded:
            self._loaded[name] = importlib.import_module(self._homes[name]).FAMILY
        return self._loaded[name]

    def __setitem__(self, name: str, family: Family[Any, Any]) -> None:
        self._homes.setdefault(name, "")
        self._loaded[name] = family

    def __delitem__(self, name: str) -> None:
        del self._homes[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        if name not in self._homes:
            self._search()
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        self._search()
        return iter(self._homes)

    def __len__(self) -> int:
        self._search()
        return len(self._homes)


FAMILIES: Final = Families()
"""All engines; `cachesim.engines` announces the built-in ones."""


def register(family: Family[Any, Any]) -> None:
    """Register an engine."""
    FAMILIES[family.name] = family


def family_of(engine: str) -> Family[Any, Any]:
    """An engine's family by its name."""
    family = FAMILIES.get(FAMILIES.named(engine))
    if family is None:
        known = sorted(FAMILIES)
        hint = did_you_mean(engine, known) or f"there are {', '.join(known)}"
        if engine in FAMILIES.broken:
            hint = f"its package cannot be loaded: {FAMILIES.broken[engine]}"
        raise ProfileError(f"there is no engine {engine!r}; {hint}")
    return family


def search_of(family: Family[R, S]) -> Search[R, S]:
    """What only searches read of an engine."""
    search = family.search
    if not search:
        return Search()
    return cast("Search[R, S]", loaded(family.name, search)) if isinstance(search, str) else search


# A profile names an engine at one release, plus patches: `llama.cpp@b9538+24143`.
#
# Merged patches can be reverted: `llama.cpp@b11549-28302`.

_SHAPE = re.compile(r"(?P<engine>[^@+]+)@(?P<release>[^@+]+)(?P<patches>(\+[^@+]+)*)")
_NUMBER = re.compile(r".+-(\d+)")
"""A name, and the number of a reverted patch after it."""


def _example(text: str) -> str:
    """A profile like the text: the newest release of a named engine, the engine of a release."""
    if (engine := FAMILIES.named(text)) in FAMILIES:
        return f"{engine}@{FAMILIES[engine].names()[-1]}"
    release = text.partition("+")[0]
    engines = [name for name, family in FAMILIES.items() if release in family.names()]
    return f"{engines[0]}@{text}" if len(engines) == 1 else "llama.cpp@b9538+24143"


@dataclass(frozen=True, slots=True)
class Profile:
    """An engine at one release, with its patches applied in order."""

    engine: str
    release: str
    patches: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Profile":
        """Read `engine@release+patch+patch`; older names of a release become the current one.

        >>> from cachesim import Profile
        >>> Profile.parse("llama.cpp@b11549+24035").patches
        ('24035',)
        """
        shape = _SHAPE.fullmatch(text.strip())
        if shape is None:
            msg = f"{text!r} is not a profile: write ENGINE@RELEASE+PATCH, like {_example(text)}"
            raise ProfileError(msg)
        engine, release = FAMILIES.named(shape["engine"]), shape["release"]
        family = FAMILIES.get(engine)
        named = (
            () if family is None else (*family.names(), *(patch.name for patch in family.patches))
        )
        named += (*former_patches(engine), *TAKEN_BACK.get(engine, ()))
        release, *patches = _separated(release, named)
        for part in shape["patches"].split("+")[1:]:
            patches += _separated(part, named)
        current = release if family is None else family.current_name(release)
        if family is not None and engine in TAKEN_BACK:
            patches = signed(engine, patches, family.fitting(current))
        if (now := today(engine, current, patches)) is not None:
            server, own = now
            return cls.parse(server).with_patches(*own)
        return cls(engine, current, tuple(patches))

    def with_patches(self, *patches: str) -> "Profile":
        """The profile with further patches."""
        return replace(self, patches=(*self.patches, *patches))

    def __str__(self) -> str:
        signed = (patch if patch.startswith("-") else f"+{patch}" for patch in self.patches)
        return "".join((f"{self.engine}@{self.release}", *signed))


def _separated(text: str, named: Sequence[str]) -> list[str]:
    """Split a name from the reverted patches after it, which keep their signs: `b11549-28302`."""
    back: list[str] = []
    while text not in named:
        number = _NUMBER.fullmatch(text)
        known = [name for name in named if text.endswith(f"-{name}")]
        if not known and number is None:
            break
        longest = max(known, key=len) if number is None else number[1]
        back.insert(0, f"-{longest}")
        text = text.removesuffix(back[0])
    return [text, *back]
