"""`Search`: the facts about an engine that only searches read, as one value.

How `cachesim check`, the laws of its findings and the workbench draw workloads for a server: each
engine declares its value in `search.py`, which is imported at its first use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from cachesim.model.spec import ModelSpec

R = TypeVar("R")
"""The type of an engine's rules."""

S = TypeVar("S")
"""The type of an engine's options: a dataclass whose fields are made by `option`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corner:
    """A combination of settings that a random search seldom draws."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    layers: frozenset[str] = frozenset()  # for models with one of these kinds of layers; empty: all
    window: int = 0  # window size; 0: the preset's own
    replies: int = 0  # maximum tokens of a reply; 0: the default
    long_replies: bool = False  # replies have half of that maximum at least
    steps: int = 0  # maximum requests of a workload; 0: the default
    crowd: bool = False  # most requests arrive together
    edges: tuple[int, ...] = ()  # lengths at which it branches, beside those of all servers
    fields: Mapping[str, Any] = field(default_factory=dict)  # of some of its requests, or several


Act: TypeAlias = Literal["new", "again", "continue", "part", "together", "cancel"]
"""Possible requests of a small scope; see `cachesim.testing.scope`."""

ACTS: Final[tuple[Act, ...]] = ("new", "again", "continue", "part")
"""Requests that every server gets."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scope:
    """A tiny server and requests, few enough to run all workloads of them.

    The lengths are where the engine branches at these flags: a block, a window, the spacing of
    checkpoints, plus or minus a token.
    """

    lengths: tuple[int, ...]  # of prompts, and where later ones part from them
    flags: Mapping[str, Any] = field(default_factory=dict)  # those that the release has are given
    more: tuple[int, ...] = (0, 1)  # new tokens of a prompt that parts or continues
    reply: int = 1  # tokens of each reply
    acts: tuple[Act, ...] = ACTS
    turns: tuple[int, ...] = (1,)  # iterations of the server's loop until a client leaves
    layers: frozenset[str] = frozenset()  # for models with one of these kinds of layers; empty: all
    without: frozenset[str] = frozenset()  # and with none of these
    window: int = 0  # window size; 0: the preset's own


STATES: Final = frozenset({"ssm", "delta", "conv"})
"""Layers with a state."""


Images: TypeAlias = Literal["none", "few", "some", "all"]
"""The requests that may have images: none, some, or none without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Draws of a guided search for a profile, beside the flags of its release."""

    sizes: tuple[int, ...] = ()  # lengths at which its rules branch
    images: Images = "none"
    fields: tuple[Mapping[str, Any], ...] = ()  # of requests, one at a time
    stop_words: str = ""  # the field of texts that end a reply
    templates: tuple[str, ...] = ()  # for chats, beside the default
    models: tuple[Mapping[str, Any], ...] = ()  # flags of a server of which two are asked
    flags: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values that no table has


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Search(Generic[R, S]):
    """What a search draws for a server, and the laws that it checks."""

    may_decline: bool = True  # requests may disable reuse (`cache_prompt`)
    keeps_replies: bool = False  # its cache holds the last token of a reply too
    aborts_at_once: bool = False  # a request whose client has left gets no further token
    draws_models: bool = False  # searches draw a second model now and then
    model_classes: Callable[["ModelSpec"], tuple[str, ...]] = lambda _: ()  # with these layers
    interrupts: bool = False  # publishes blocks before it writes them: searches abort requests
    drafting: Mapping[str, Any] = field(default_factory=dict)  # options that enable an MTP head
    reuse_flags: tuple[str, ...] = ()  # that switch reuse off where false
    finds_again: Callable[[S], int] = lambda _: 0
    """The unit of reuse under these flags, if a prompt sent again at once is always found; or 0.
    A law for models with full attention alone; a server whose policy is another declares none."""
    guide: Callable[[R, S], Guide] = lambda _rules, _flags: Guide()
    """Draws of a guided search beside flags, by the rules and flags of a server."""
    laws: Callable[[Any], Any] | None = None
    """Further `Laws` of a server that has just started, checked request by request; see `seen`."""
    draft_flag: str = ""  # flag that names the drafter: searches then force drafts
    adapter_flag: str = ""  # flag that names adapters; requests have a field with strengths
    asks: Mapping[str, Any] = field(default_factory=dict)  # request fields that searches set
    hunted: tuple[Mapping[str, Any], ...] = ({},)  # flags of the servers of a hunt, in turn
    corners: tuple[Corner, ...] = ()  # settings for half of a search's workloads
    late_corners: tuple[Corner, ...] = ()  # flags laid over a workload after all its draws
    guided_corners: tuple[Corner, ...] = ()  # settings for guided searches, beside all those
    chunked_flags: Mapping[str, Any] = field(default_factory=dict)  # for some models with chunks
    chunked_layers: tuple[str, ...] = ()  # of models with chunks; else those of the preset
    further_layers: tuple[tuple[str, ...], ...] = ()  # of models that no preset has
    scopes: tuple[Scope, ...] = ()  # tiny servers, each run with all workloads of few requests
    incidents: tuple[str, ...] = ()  # further kinds of actions in long searches
    exercised: Mapping[str, str] = field(default_factory=dict)  # event -> a search's feature
