"""What the server of a release does with a request, as data: one field per difference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

Tails: TypeAlias = Literal["ragged", "padded"]
"""Fed after the checkpoint: the last columns of each prompt, refused or padded if unequal."""

WhenDead: TypeAlias = Literal["hangs", "refused"]
"""What becomes of a request that comes after the generation thread died."""

COMMON_OPTIONS: Final = frozenset({"prompt_concurrency", "decode_concurrency"})
SIZE_OPTIONS: Final = frozenset({"prompt_cache_size", "prompt_cache_bytes"})
STEP_OPTION: Final = frozenset({"prefill_step_size"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRules:
    """#923: copies of a finished conversation, cut back to the ends of its messages."""

    interval: int = 8192
    always_the_last_boundary: bool = False  # 929, its first fix
    boundary_after_every_message: bool = False  # 929, its second fix
    trims_each_layer_it_can: bool = False  # 929, its third fix


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRules:
    """How one release tokenises, looks up, prefills, stores and reports."""

    segments: bool = False
    """#1072 (0.31.2): prompts are prefilled in segments, right-padded, key and state together; what
    a disconnected client leaves is thrown away, where #741 had stored it."""

    checkpoint: bool = False  # 911: one state of each chat prompt is kept, near its end
    checkpoint_at_last_user: bool = False  # 1006: near the end becomes "before the last user text"
    tails: Tails = "ragged"  # 1006, its second commit: "padded"
    checkpoint_only_at_own_distance: bool = False  # 1006, its third commit
    binds_late: bool = False  # until 976: each checkpoint of a batch holds the last row's state
    reports_cached: bool = True  # 849
    stop_words_end_generation: bool = False  # 1072: before, the HTTP side watched for them
    refuses_empty_prompts: bool = False  # 0.32.0: ValueError where an IndexError came
    when_dead: WhenDead = "hangs"  # 0.32.0: fails fast
    options: frozenset[str] = COMMON_OPTIONS  # 741; 906 adds the sizes, 943 the step
    snapshots: SnapshotRules | None = None  # 923


_R0_30_7: Final = ServerRules(reports_cached=False)
_AFTER_906: Final = replace(_R0_30_7, reports_cached=True, options=COMMON_OPTIONS | SIZE_OPTIONS)
_R0_31_0: Final = replace(
    _AFTER_906, checkpoint=True, binds_late=True, options=_AFTER_906.options | STEP_OPTION
)
_R0_31_1: Final = replace(_R0_31_0, binds_late=False)
_R0_31_2: Final = replace(
    _R0_31_1,
    segments=True,
    checkpoint=False,
    stop_words_end_generation=True,
)
_R0_32_2: Final = replace(_R0_31_2, refuses_empty_prompts=True, when_dead="refused")

SERVER_RELEASES: Final[Mapping[str, ServerRules]] = {
    "0.30.7": _R0_30_7,
    "after-906": _AFTER_906,
    "0.31.0": _R0_31_0,
    "0.31.1": _R0_31_1,
    "0.31.1-main": _R0_31_1,
    "after-1019": _R0_31_1,
    "0.31.2": _R0_31_2,
    "0.31.3": _R0_31_2,
    "0.32.2": _R0_32_2,
}
"""The server of each release; `after-906`, `0.31.1-main` and `after-1019` are states of upstream's
main branch that proposals and bugs stand on."""

_MENDS_929: Final[Mapping[str, str]] = {
    "929.1": "always_the_last_boundary",
    "929.2": "boundary_after_every_message",
    "929.3": "trims_each_layer_it_can",
}

SERVER_PATCHES: Final[Mapping[str, Mapping[str, Any]]] = {
    "923": {"snapshots": {}},
    "929": {"snapshots": dict.fromkeys(_MENDS_929.values(), True)},
    **{patch: {"snapshots": {mend: True}} for patch, mend in _MENDS_929.items()},
    "1006.1": {"checkpoint_at_last_user": True},
    "1006.2": {"checkpoint_at_last_user": True, "tails": "padded"},
    "1006": {
        "checkpoint_at_last_user": True,
        "tails": "padded",
        "checkpoint_only_at_own_distance": True,
    },
}
"""What each proposal changes in the server; the stores' and layers' part stands with them. #929's
mends are changes to #923's snapshots, and add up."""


def patched(rules: ServerRules, patch: str) -> ServerRules:
    """The rules with one patch laid over them; patches that do not touch the server change none."""
    changes = dict(SERVER_PATCHES.get(patch, {}))
    if "snapshots" in changes:
        base = rules.snapshots or SnapshotRules()
        changes["snapshots"] = replace(base, **changes["snapshots"])
    return replace(rules, **changes)
