"""What one line teaches of the request that its slot is at work on."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from cachesim.logs.messages import Fields
from cachesim.logs.observed import Observed, ServerLog

Handler: TypeAlias = Callable[[ServerLog, Observed, Fields], None]


def _prompt(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.n_tokens = int(fields["n_tokens"])


def _depth(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.depth = int(fields["n_past"]), int(fields["held"]), int(fields["n_swa"])
    request.swa = int(fields["n_swa"])
    request.keeps_all = int(fields["pos_min"]) == 0 and request.depth[1] > 1
    if fields["pos_min"] == str(request.depth[1] - 1):  # nothing but the last position is kept
        request.spans.append((request.depth[1] - 1, request.depth[1] - 1))


def found_in_slot(request: Observed, fields: Fields) -> None:
    """What ik_llama.cpp's slot had in common with the prompt, before it was cut."""
    if request.depth is None:
        request.depth = int(fields["n_past"]), int(fields["held"]), 0
        request.offset = int(fields["in_prompt"]) - int(fields["n_past"])
        request.prints_tries = False


def _span(request: Observed, fields: Fields) -> None:
    """The positions of a checkpoint: one alone is a recurrent state, several are a window."""
    request.spans.append((int(fields["pos_min"]), int(fields["pos_max"])))


def _checked(_: ServerLog, request: Observed, fields: Fields) -> None:
    _span(request, fields)
    request.checked.append((int(fields["pos_min"]), int(fields["pos_max"]), int(fields["bound"])))


def _restored(server: ServerLog, request: Observed, fields: Fields) -> None:
    _span(request, fields)
    request.restored_at = int(fields["n_tokens"])
    request.restored = int(fields.get("n_past", fields["n_tokens"]))
    server.checkpoint_mib.append((request.restored_at, float(fields["size"])))


def _forced(_: ServerLog, request: Observed, fields: Fields) -> None:
    del fields
    request.forced = True


def _erased(_: ServerLog, request: Observed, fields: Fields) -> None:
    _span(request, fields)
    following = fields.get("pos_next")
    request.erased.append((int(fields["n_tokens"]), None if following is None else int(following)))
    request.swa = int(fields["n_swa"])


def _created(server: ServerLog, request: Observed, fields: Fields) -> None:
    _span(request, fields)
    n_tokens = int(fields["n_tokens"])
    request.created.append((int(fields["pos_min"]), int(fields["pos_max"]), n_tokens))
    server.facts.setdefault("checkpoints", fields["most"])
    server.checkpoint_mib.append((n_tokens, float(fields["size"])))


def _one_token(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.one_token = True
    if request.n_tokens is None and "n_tokens" in fields:
        request.n_tokens = int(fields["n_tokens"])


def _removed(_: ServerLog, request: Observed, fields: Fields) -> None:
    p0 = int(fields["p0"])
    if request.first_cut is None:
        request.first_cut = p0
    request.cuts.append(p0)


def _refused_cut(_: ServerLog, request: Observed, fields: Fields) -> None:
    del fields
    request.refused_cut, request.refused_at = True, request.first_cut
    request.first_cut = 0


def _empty(_: ServerLog, request: Observed, fields: Fields) -> None:
    del fields
    request.is_empty = True
    request.n_tokens = request.first_cut = request.processed = request.generated = 0


def _read(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.done_at = int(fields["n_tokens"])
    if request.n_tokens is None:
        request.n_tokens = request.done_at


def _prompt_time(_: ServerLog, request: Observed, fields: Fields) -> None:
    if request.is_empty:
        return
    request.processed, request.prompt_ms = int(fields["tokens"]), float(fields["ms"])


def _reply_time(_: ServerLog, request: Observed, fields: Fields) -> None:
    if request.is_empty:
        return
    request.generated, request.reply_ms = int(fields["tokens"]), float(fields["ms"])


def _drafts(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.accepted = int(fields["accepted"])


def _shifted(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.shifts.append((int(fields["left"]), int(fields["discard"])))


def _chunk(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.moved.append((int(fields["was"]), int(fields["at"]), int(fields["size"])))


def _released(_: ServerLog, request: Observed, fields: Fields) -> None:
    request.held_after = int(fields["n_tokens"])
    request.truncated = fields["truncated"] in {"1", "true"}


HANDLERS: Final[Mapping[str, Handler]] = {
    "prompt": _prompt,
    "depth": _depth,
    "checked": _checked,
    "restored": _restored,
    "forced": _forced,
    "erased": _erased,
    "created": _created,
    "one-token": _one_token,
    "removed": _removed,
    "refused-cut": _refused_cut,
    "empty": _empty,
    "read": _read,
    "prompt-time": _prompt_time,
    "reply-time": _reply_time,
    "drafts": _drafts,
    "shifted": _shifted,
    "chunk": _chunk,
    "released": _released,
}
"""Message -> what a request learns from it."""
