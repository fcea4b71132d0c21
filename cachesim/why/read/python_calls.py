"""llama-cpp-python's lines with `verbose=True`, call by call; none of them names an instance.

Llama._create_completion: cache hit                                  a saved state is loaded
Llama.generate: 10 prefix-match hit, remaining 5 prompt tokens ...   or none: nothing matches
llama_perf_context_print: prompt eval time = 0.55 ms / 5 tokens      and drafts; 0.00 ms: none
llama_perf_context_print:        eval time = 0.49 ms / 3 runs
llama_perf_context_print:       total time = 9.48 ms / 8 tokens      the call's end
"""

from typing import Final

from cachesim.why.read.observed import UNKNOWN, Observed, ServerLog, bounded, computed, printed
from cachesim.why.read.patterns import Fields

LOADED: Final = "A saved state was loaded: more of the prompt matches its tokens."
MISSES: Final = "No saved state begins with the first token of the prompt."

WINDOW: Final = (
    "the window of a loaded state may lack keys, as tokens evaluated after the load took their "
    "cells; `set_cache(None)` avoids it"
)
SMALL: Final = "the window's cells may have been used again; `swa_full=True` avoids it"
"""Risks of a cut on a sliding-window model; each has a scenario."""


def milliseconds(fields: Fields) -> float:
    """A time; the decimal mark is that of the process's locale."""
    return float(fields["ms"].replace(",", "."))


class Calls:
    """Calls of an instance, in the order of their lines."""

    def __init__(self, server: ServerLog) -> None:
        self.server = server
        self.held: int | None = 0  # tokens of the instance; None: no line has them
        self._added: int | None = None  # tokens decoded since a state was loaded
        self._top = 0  # most tokens held since then
        self._risk: str | None = None
        self._call: Observed | None = None
        self._decoded = 0

    def take(self, line: int, name: str, fields: Fields) -> None:
        """Read one message."""
        begins = name in {"py-cache", "py-hit", "py-refused", "py-held"}
        call = self._call
        if call is not None and begins and (name == "py-cache" or call.first_cut is not None):
            call.cancelled, call.disconnected, call.ended = True, None, True
            call, self.held = None, None  # a stream that nobody read to its end, or an exception
        if call is None:
            call = self._call = self.server.begin(line)
            self._decoded = 0
        match name:
            case "py-cache":  # the lookup before a completion; no line has a loaded state's length
                if fields["what"] == "hit":
                    self.held, self._added, self._top, self._risk = None, 0, 0, None
                call.notes.append(LOADED if fields["what"] == "hit" else MISSES)
            case "py-hit":
                self._hit(call, fields)
            case "py-refused":  # recurrent memory cannot be cut: the whole prompt is evaluated
                call.refused_cut, call.first_cut = True, 0
                self._clear()
                call.shared = printed(int(fields["n_tokens"]))
            case "py-held":  # the instance holds the prompt, and nothing more
                call.processed, call.n_tokens, call.first_cut = 0, self.held, self.held
                call.shared = UNKNOWN if self.held is None else computed(self.held)
            case "py-prompt-time":
                self._prompt_time(call, fields)
            case "py-reply-time":  # decode calls of one token; of a prompt of one, too
                self._decoded += 0 if not milliseconds(fields) else int(fields["tokens"])
                call.reply_ms = milliseconds(fields)
                if call.processed == 0 and call.first_cut == 0:
                    call.processed = 1
            case "py-end":
                self._end(call)

    def _hit(self, call: Observed, fields: Fields) -> None:
        """A prefix is kept, and the memory cut after it."""
        n_tokens, rest = int(fields["n_tokens"]), int(fields["rest"])
        call.first_cut, call.processed = n_tokens, rest
        call.n_tokens = n_tokens + rest
        call.shared = printed(n_tokens)
        if rest == 1 and self.held != n_tokens:  # the last token of a held prompt, or another one
            call.shared = bounded(n_tokens, n_tokens, n_tokens + 1)
        elif self.held is not None and self.held > n_tokens:
            call.depth = (n_tokens, self.held, 0)
        call.stale = self._risk = self._risk or self._lacks_keys(n_tokens)

    def _lacks_keys(self, n_tokens: int) -> str | None:
        """The reason why keys of the window may be missing before a cut; None where it has none.

        Tokens after a loaded state take the first cells, so those of the lowest positions.
        """
        facts = self.server.facts
        window, cells = int(facts.get("n_swa", "0")), int(facts.get("swa-cells", "0"))
        first = max(0, n_tokens - window + 1)
        if not window or n_tokens >= self._top:
            return None
        if "swa-full" not in facts and cells and self._top - first > cells:
            return SMALL
        return WINDOW if self._added is not None and first < self._added else None

    def _clear(self) -> None:
        self._added, self._top, self._risk = None, 0, None

    def _prompt_time(self, call: Observed, fields: Fields) -> None:
        """Tokens of decode calls of more than one."""
        count = 0 if not milliseconds(fields) else int(fields["tokens"])
        self._decoded += count
        call.prompt_ms = milliseconds(fields)
        if call.refused_cut and call.shared == printed(count - 1):
            call.shared = bounded(count - 1, count - 1, count)  # it may have been the whole prompt
        if call.processed is not None:
            if count > call.processed > 1:
                self.server.mixed = True
            return
        call.processed = count
        if call.first_cut is None:
            call.first_cut = 0
            self._clear()
            silent = "rs-size" in self.server.facts  # until 0.3.31 no line is printed of a reset
            call.shared = computed(0) if self.held and not silent else UNKNOWN

    def _end(self, call: Observed) -> None:
        """Tokens that the instance holds at a call's end, unless drafts were rejected."""
        call.ended, self._call, self.held = True, None, None
        if self.server.mixed:
            for request in self.server.requests:
                if request.n_tokens is None:
                    request.processed = None
        elif call.first_cut is not None and call.processed is not None:
            self.held = call.first_cut + self._decoded
            self._top = max(self._top, self.held)
            self._added = None if self._added is None else self._added + self._decoded
            generated = self._decoded - call.processed + 1
            call.generated = generated if generated >= 0 else None  # lines are missing
