"""Bugs of llama.cpp's memory and server, historical and plausible."""

from functools import partial
from typing import Any, Final

import numpy as np

from cachesim.engines.llamacpp import checkpoints, selection, update_slots
from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.blob import RowBlock
from cachesim.engines.llamacpp.memory.cells import WindowMask
from cachesim.engines.llamacpp.memory.hybrid import WindowPair
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.recurrent_cells import PlaneWriter
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from cachesim.units import Count
from conformance.mutants.switches import Swap, always, answers, counts, swap, wrapped

SOUND: Final = "llama.cpp@b11549+erase-equal"
SOUND_WINDOW: Final = "llama.cpp@b11549+erase-equal+search-read-again"
"""A window needs both cures: with the first alone random workloads find a key missing at once.

Long ones find something still (the 286th of up to 200 tokens), so hunts for windows are short.
"""

RECORDS: Final = "server-b11549"


released = partial(answers, profile=SOUND)
reported = partial(counts, records=RECORDS)


# -- memory ----------------------------------------------------------------------------------------


def _zeroing_trim(self: RecurrentMemory, _seq: int, tail: int, p0: int) -> bool:
    for rows in self.planes.rows.values():
        rows[tail :: self.size] = 0
    self.cells.pos[tail] = p0 - 1
    return True


def _ignoring_trim(self: RecurrentMemory, _seq: int, tail: int, p0: int) -> bool:
    """Says yes, moves the position, keeps the state."""
    self.cells.pos[tail] = p0 - 1
    return True


def _aliased_rows(original: Any, memory: RecurrentMemory, seq: int, *, partial: bool) -> Any:
    """A blob that shares its rows with the live memory: a shallow copy."""
    fields = original(memory, seq, partial=partial)
    blocks = [field for field in fields if isinstance(field, RowBlock)]
    cells = [c for c, seqs in enumerate(memory.cells.seqs) if seq in seqs]
    if len(cells) != 1:
        return fields
    row = cells[0]
    live = [
        memory.planes.rows[layer][row : row + 1][:, part] for layer, _, _, part in memory.blocks
    ]
    swapped = iter(block._replace(data=data) for block, data in zip(blocks, live, strict=True))
    return [next(swapped) if isinstance(field, RowBlock) else field for field in fields]


def _first_plane_only(self: PlaneWriter, layer: int, states: Any) -> None:
    rows = self.rows.rows[layer]
    at = self.window.head + np.arange(self.ubatch.n_seqs)
    rows[at] = states[:, 0]


def _late_state(self: PlaneWriter, layer: int, states: Any) -> None:
    """Keeps the state that the ubatch began with."""
    rows = self.rows.rows[layer]
    at = self.window.head + np.arange(self.ubatch.n_seqs)
    rows[at] = rows[list(self.window.sources[: len(states)])]


def _interval(low: int, high: int) -> Any:
    def change(original: Any, self: WindowMask, queries: Any, *, causal: bool = True) -> Any:
        lowest, highest = original(self, queries, causal=causal)
        return lowest + (low if self.kind != "none" else 0), highest + high

    return wrapped(change)


MEMORY: Final = (
    released(
        "trim-zeroes-the-state",
        "a recurrent trim says yes and forgets the state",
        swap(RecurrentMemory, "_roll_back", lambda _: _zeroing_trim)
        + swap(update_slots, "_deep_enough", lambda _: lambda _s, _l, _t, prefix: prefix),
        upstream="ml-explore/mlx-lm#1254",
    ),
    released(
        "trim-ignores-the-state",
        "a recurrent trim says yes and keeps what was cut",
        swap(RecurrentMemory, "_roll_back", lambda _: _ignoring_trim)
        + swap(update_slots, "_deep_enough", lambda _: lambda _s, _l, _t, prefix: prefix),
        upstream="ikawrakow/ik_llama.cpp#1689",
    ),
    released(
        "shallow-copy-of-a-state", "a saved state shares its rows with the live memory",
        swap(RecurrentMemory, "state_write", wrapped(_aliased_rows)),
    ),
    released(
        "restore-forgets-the-rows",
        "a restored state has its position and not its numbers",
        swap(
            RecurrentMemory,
            "_queue_rows",
            wrapped(
                lambda original, memory, reader, cells: reader.queue.__delitem__(
                    slice((original(memory, reader, cells), 0)[1], None)
                )
            ),
        ),
    ),
    released(
        "state-before-the-batch", "the state kept is the one the ubatch began with",
        swap(PlaneWriter, "keep_states", lambda _: _late_state),
    ),
    released(
        "stale-planes",
        "only the newest of the rollback's states is kept",
        swap(PlaneWriter, "keep_states", lambda _: _first_plane_only),
        model="hybrid-mtp",
        shape={"longest": 40, "replies": 24},
        profile="llama.cpp@b11549+erase-equal",
        upstream="ggml-org/llama.cpp#26695",
    ),
    released(
        "window-too-narrow", "the mask hides one position too many",
        swap(WindowMask, "interval", _interval(1, 0)), model="swa", profile=SOUND_WINDOW,
    ),
    released(
        "sees-the-future", "causality is off by one", swap(WindowMask, "interval", _interval(0, 1)),
        model="dense", profile="llama.cpp@b11549",
    ),
    released(
        "wrong-pos-min-of-a-window", "a window reports that it still holds everything",
        swap(WindowPair, "seq_pos_min", always(0)), model="swa", profile=SOUND_WINDOW,
        shape={"longest": 200, "max_steps": 8, "flags": False}, patience=40,
    ),
    released(
        "attention-not-cut", "removal forgets nothing",
        swap(AttentionCache, "seq_rm", always(True)), model="dense", profile="llama.cpp@b11549",
    ),
    released(
        "removal-one-too-late",
        "removal begins one position behind",
        swap(
            AttentionCache,
            "seq_rm",
            wrapped(
                lambda original, self, seq, p0, p1: original(
                    self, seq, p0 + 1 if p0 > 0 else p0, p1
                )
            ),
        ),
        model="dense",
        profile="llama.cpp@b11549",
    ),
)  # fmt: skip


# -- the start of a prompt -------------------------------------------------------------------------


def accepts(test: Any) -> tuple[checkpoints.Accept, ...]:
    """One test that a checkpoint has to pass."""
    return (checkpoints.Accept(passes=test, refused_if="mutant"),)


ALWAYS: Final = accepts(lambda _cur, _p: True)
BEYOND_BY_ONE: Final = accepts(lambda cur, p: cur.pos_max <= p.pos_next + 1)


def _accepting(exact: Any, limit: Any) -> tuple[Swap, ...]:
    return swap(checkpoints, "EXACT", lambda tests: {**tests, "threshold": exact}) + swap(
        checkpoints, "LIMITS", lambda tests: {**tests, "beyond": limit}
    )


def _more(extra: int) -> Any:
    def change(original: Any, *args: Any) -> Any:
        prefix = original(*args)
        return prefix._replace(n_past=prefix.n_past + extra, pos_next=prefix.pos_next + extra)

    return wrapped(change)


def _late_checkpoint(original: Any, server: Any, slot: Any, n_tokens: int, *rest: Any) -> None:
    original(server, slot, n_tokens + 1, *rest)


def _erasing(test: Any) -> tuple[Swap, ...]:
    erase = checkpoints.Erase(erases=test, rule="mutant")
    return swap(checkpoints, "ERASURES", lambda erasures: {**erasures, "equal": erase})


START: Final = (
    released(
        "depth-test-skipped", "memory is taken to reach back as far as is asked",
        swap(update_slots, "_deep_enough", lambda _: lambda _s, _l, _t, prefix: prefix),
    ),
    released(
        "any-checkpoint-will-do", "the newest checkpoint is taken, wherever it stands",
        _accepting(ALWAYS, ALWAYS) + _erasing(lambda _cur, _p: False),
    ),
    released(
        "search-one-too-far",
        "a checkpoint one token beyond the match may be taken",
        _accepting(ALWAYS, BEYOND_BY_ONE) + _erasing(lambda cur, p: cur.pos_max > p.pos_next + 1),
        upstream="ikawrakow/ik_llama.cpp#1888",
    ),
    released(
        "nothing-is-erased", "checkpoints of another prompt stay in the list",
        _erasing(lambda _cur, _p: False),
    ),
    released(
        "erasure-off-by-one",
        "the released erasure: a checkpoint at pos_next stays",
        profile="llama.cpp@b11549",
        cured=SOUND,
        shape={},
        upstream="ggml-org/llama.cpp#24035",
    ),
    released(
        "checkpoint-one-token-late", "a checkpoint is recorded as one token longer than it is",
        swap(checkpoints, "create_checkpoint", wrapped(_late_checkpoint)),
    ),
    released(
        "restore-counts-one-more", "after a restore one token too many is taken as present",
        swap(update_slots, "_resume_from", _more(1)),
    ),
    released(
        "prefix-counts-one-more",
        "the common prefix is one token too long",
        swap(
            update_slots,
            "get_common_prefix",
            wrapped(
                lambda original, one, other: Count(
                    min(original(one, other) + 1, len(one), len(other))
                )
            ),
        ),
        model="dense",
        profile="llama.cpp@b11549",
    ),
    released(
        "window-beyond-the-match",
        "b9538: a window checkpoint beyond the match is taken",
        profile="llama.cpp@b9538",
        cured="llama.cpp@b9538+erase-equal+search-read-again",
        patience=20,
        model="swa",
        shape={},
        upstream="ggml-org/llama.cpp#24411",
    ),
    reported(
        "threshold-off-by-one",
        "a checkpoint that ends right at the prefix is refused",
        _accepting(
            accepts(lambda cur, p: cur.pos_min < p.pos_min_thold - 1 or cur.pos_min == 0),
            checkpoints.LIMITS["beyond"],
        ),
    ),
    reported(
        "last-token-not-kept-back",
        "a prompt that is all cached needs no token",
        swap(
            update_slots,
            "_commit",
            wrapped(
                lambda original, slot, n_past: original(
                    slot, max(0, n_past - 1) if n_past == slot.running.n_tokens - 1 else n_past
                )
            ),
        ),
    ),
)  # fmt: skip

# -- slots, prompt cache, checkpoints --------------------------------------------------------------


def _first_of_equals(server: Any) -> Any:
    idle = [slot for slot in server.slots if not slot.is_processing]
    return min(idle, key=lambda slot: slot.t_last_used, default=None)


def _keeps_entry(original: Any, server: Any, cache: PromptCache, *rest: Any) -> Any:
    held = list(cache.entries)
    loaded = original(server, cache, *rest)
    for entry in held:
        if entry not in cache.entries:
            cache.add(entry)
    cache.entries[:] = held
    return loaded


def _loses_checkpoints(
    original: Any, server: Any, cache: PromptCache, slot: Any, *rest: Any
) -> Any:
    loaded = original(server, cache, slot, *rest)
    slot.prompt.checkpoints = []
    return loaded


KEEPING: Final = (
    reported(
        "ties-to-the-lowest-slot", "of slots never used the lowest is taken",
        swap(selection, "_least_recently_used", lambda _: _first_of_equals),
    ),
    reported(
        "f-keep-half-is-too-little", "a slot of which exactly half stays is parked",
        swap(selection, "HALF", lambda half: np.float32(half + np.float32(0.05))),
    ),
    reported(
        "load-keeps-the-entry",
        "what was loaded stays in the prompt cache",
        swap(selection, "prompt_load", wrapped(_keeps_entry)),
        upstream="ggml-org/llama.cpp#24143",
    ),
    reported(
        "load-without-checkpoints", "a loaded conversation comes without its checkpoints",
        swap(selection, "prompt_load", wrapped(_loses_checkpoints)),
    ),
    reported(
        "nothing-is-parked", "every prompt is taken for one that an entry holds already",
        swap(PromptCache, "contains", always(True)),
    ),
    reported(
        "prefixes-stay", "shorter entries are not dropped for a longer one",
        swap(PromptCache, "_drop_prefixes_of", always(None)),
    ),
    reported(
        "entries-by-similarity-alone", "an entry need not keep more than the slot does",
        swap(PromptCache, "_beats", lambda _: lambda _self, _k, sim, _bk, best: bool(best < sim)),
    ),
    reported(
        "no-cut-before-the-end",
        "no batch ends four tokens before the prompt's end",
        swap(update_slots, "break_at", lambda _: lambda _s, _slot, task, **_k: int(task.n_tokens)),
        upstream="ggml-org/llama.cpp#20288",
    ),
    reported(
        "list-drops-nothing-for-its-length", "a full list makes no room",
        swap(checkpoints, "make_room", always(None)),
    ),
    reported(
        "spacing-is-ignored", "checkpoints are taken however close they lie",
        swap(checkpoints, "_is_far_enough", always(True)), records="server-b9538",
    ),
)  # fmt: skip

LLAMA_CPP: Final = MEMORY + START + KEEPING
