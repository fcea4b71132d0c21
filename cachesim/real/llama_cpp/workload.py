"""A workload: one fresh server and what is asked of it, and the outcome that was observed."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from cachesim.engines.base import Message
from cachesim.units import Token, Tokens, as_tokens

Release: TypeAlias = str
"""A release of llama.cpp that a wheel plays."""

Action: TypeAlias = Literal[
    "complete", "slot-save", "slot-restore", "slot-erase", "set-lora", "restart", "sleep"
]

CRASH: Final = "crash"
"""The error of a call during which the real process ended."""

ENDLESS: Final = "endless"
"""The error of a call that the real process works at without end."""

CANCELLED: Final = "cancelled"
"""The error of a request whose client went away."""

SILENT: Final = "silent"
"""The error of a call that the real process neither works at nor answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing asked of a server.

    `with_previous` puts a completion into the queue together with the step before it, as several
    prompts of one HTTP call do; all steps of such a group share `predict` and `cache_prompt`. With
    `turns` it comes in a call of its own, while the server works on what came before.
    """

    name: str
    do: Action = "complete"
    prompt: Tokens = ()
    predict: int = 1
    slot: int = -1
    cache_prompt: bool = True
    with_previous: bool = False
    turns: int = 0  # of the server's loop before it arrives; the real server's are not counted
    messages: tuple[Message, ...] = ()  # a chat, asked for in place of a prompt
    abandoned: bool = False  # the client goes away while the reply is being given
    half_read: bool = False  # it does so sooner, while its prompt is being read
    forced: Tokens = ()  # what the reply has to be, whatever the model would say
    completions: int = 1  # of the same prompt
    suffix: Tokens = ()  # infill: what stands after the gap, of which the prompt stands before it
    query: int = 0  # rerank: how many tokens of the prompt ask; the others are the document
    parts: bool = False  # each line of a message is sent as a part of its own
    file: str = ""  # slot-save and slot-restore: the name that the state is kept under
    options: Mapping[str, Any] = field(default_factory=dict)  # further fields of the request

    def as_dict(self) -> dict[str, Any]:
        """The step as a scenario file or a vector file writes it; defaults are left out."""
        plain: dict[str, Any] = {"name": self.name}
        if self.do == "complete":
            plain |= {"prompt": list(self.prompt), "predict": self.predict}
        else:
            plain |= {"do": self.do}
        for key in _STEP_DEFAULTS:
            value = getattr(self, key)
            if value != _STEP_DEFAULTS[key]:
                plain[key] = _PLAIN[key](value) if key in _PLAIN else value
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Step":
        """The reverse of `as_dict`; keys that only describe the outcome are ignored."""
        known = {key: plain[key] for key in (*_STEP_DEFAULTS, "do", "predict") if key in plain}
        known["messages"] = tuple(Message(**each) for each in known.get("messages", ()))
        for each in ("forced", "suffix"):
            known[each] = as_tokens(known.get(each, []))
        return cls(name=plain["name"], prompt=as_tokens(plain.get("prompt", [])), **known)


_STEP_DEFAULTS: Final[Mapping[str, Any]] = {
    "slot": -1,
    "cache_prompt": True,
    "with_previous": False,
    "turns": 0,
    "messages": (),
    "abandoned": False,
    "half_read": False,
    "forced": (),
    "completions": 1,
    "suffix": (),
    "query": 0,
    "parts": False,
    "file": "",
    "options": {},
}


_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "options": dict,
    "forced": list,
    "suffix": list,
    "messages": lambda messages: [asdict(each) for each in messages],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A fresh server of one release, its model and flags, and the steps played on it."""

    name: str
    release: Release
    preset: str
    window: int = 0  # 0: the preset's own
    options: Mapping[str, Any]
    steps: tuple[Step, ...]

    @property
    def requests(self) -> int:
        """How many completions it asks for."""
        return sum(step.do == "complete" for step in self.steps)

    @property
    def model(self) -> dict[str, Any]:
        """The model as a scenario file names it."""
        return {"preset": self.preset} | ({"window": self.window} if self.window else {})

    def as_dict(self) -> dict[str, Any]:
        """The workload as a line of a vector file has it, without what was observed."""
        return {
            "id": self.name,
            "profile": f"llama.cpp@{self.release}",
            "model": self.model,
            "options": dict(self.options),
            "steps": [step.as_dict() for step in self.steps],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Workload":
        """Read what `as_dict` wrote, or a line of a vector file."""
        return cls(
            name=plain["id"],
            release=plain["profile"].partition("@")[2],
            preset=plain["model"]["preset"],
            window=plain["model"].get("window", 0),
            options=plain["options"],
            steps=tuple(Step.from_dict(step) for step in plain["steps"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a server answered to one step; a refusal or a crash has `error` set.

    Chat replies do not say which slot was used, nor whether it was truncated: None.
    """

    cached: int | None = None
    processed: int | None = None
    reply: Tokens = ()
    slot: int | None = None
    truncated: bool | None = False
    error: str | None = None
    drafts: tuple[Tokens, ...] | None = None  # what a companion proposed, where the log was read
    drafted: int = 0
    accepted: int = 0
    top: tuple[Mapping[Token, float], ...] = ()  # per generated token: the likeliest, by log
    prompt_seconds: float = field(default=0.0, compare=False)  # by the server's own clock
    reply_seconds: float = field(default=0.0, compare=False)

    def agrees_with(self, other: "Outcome") -> bool:
        """True when the other one says the same, as far as this one says anything."""
        theirs = other.as_dict()
        said = {key: value for key, value in self.as_dict().items() if value is not None}
        return all(theirs.get(key) == value for key, value in said.items())

    def as_dict(self) -> dict[str, Any]:
        """The outcome as a line of a vector file has it."""
        if self.error is not None:
            return {"error": self.error}
        return {
            "cached": self.cached,
            "processed": self.processed,
            "generated": len(self.reply),
            "slot": self.slot,
            "truncated": self.truncated,
        }
