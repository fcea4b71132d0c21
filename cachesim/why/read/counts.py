"""Lines with a request's counts, as servers print them whose caches are not named by slots.

Ollama, SGLang and LM Studio print all counts of a request in one line or in a few that follow each
other, oMLX repeats a request's id, and KoboldCpp's and mlx-openai-server's lines are of the request
that is being read.

    prefix cache: request 3dd4 re-prefills 13956 of 120452 tokens (reused 106496); closest ...
    Processing Prompt [BATCH] (512 / 2397 tokens)    CtxLimit:2490/8192, ... Generated:93/300 ...
    Cache reuse summary: 69/147 of prompt (46.9%), 69 prefix, 0 non-prefix
"""

from collections.abc import Mapping
from typing import Final

from cachesim.why.read.observed import UNKNOWN, Observed, ServerLog, printed
from cachesim.why.read.patterns import pattern

_N: Final = r"[\d,]+"

COUNT_PATTERNS: Final = (
    pattern(
        "ollama",
        " matched=",
        r"cache (?:hit|miss)\b.{0,400} total=(?P<n_tokens>\d+) +matched=(?P<shared>\d+) +"
        r"cached=(?P<cached>\d+) +left=(?P<left>\d+)",
    ),
    pattern(
        "lm-studio-restored",
        "Prompt cache restore:",
        r"cached_tokens=(?P<cached>\d+) uncached_tokens=(?P<left>\d+)",
    ),
    pattern("lm-studio-reply", '"completion_tokens"', r'completion_tokens": (?P<generated>\d+)'),
    pattern(
        "lm-studio-reuse",
        "Cache reuse summary:",
        r"summary: (?P<cached>\d+)/(?P<n_tokens>\d+) of prompt.{0,40} (?P<shared>\d+) prefix",
    ),
    pattern("lm-studio-left", "Prompt tokens to decode:", r"decode: (?P<left>\d+)"),
    pattern(
        "lm-studio-cleared", "Failed to remove tokens from cache, clearing", r"(?P<all>Failed)"
    ),
    pattern(
        "sglang",
        "meta_info prompt_tokens=",
        r"^meta_info prompt_tokens=(?P<n_tokens>\d+)(?: \w+_retractions=(?P<retractions>\d+))?"
        r" completion_tokens=(?P<generated>\d+) cached_tokens=(?P<cached>\d+)",
    ),
    pattern(
        "omlx-restored",
        "Prefix cache restore for",
        r"restore for (?P<id>\S+): .{0,80}\bcached=(?P<cached>\d+) suffix=(?P<left>\d+)",
    ),
    pattern(
        "omlx",
        "re-prefills",
        r"request (?P<id>\S+) re-prefills (?P<left>\d+) of (?P<n_tokens>\d+) tokens "
        r"\(reused (?P<cached>\d+)\)"
        r"(?:.{0,200} shares the first (?P<shared>\d+) of (?P<stored>\d+) comparable)?",
    ),
    pattern(
        "omlx-reply",
        "hat completion: model=",
        r", (?P<generated>\d+) tokens in .{0,80} prompt: (?P<n_tokens>\d+)",
    ),
    pattern(
        "kobold-debug",
        "[Debug: ",
        r"Debug: (?:embd_inp=(?P<left>\d+) )?n_past=(?P<cached>\d+) Context Size",
    ),
    pattern(
        "kobold-progress",
        "Processing Prompt",
        r"Prompt(?: \[\w+\])? \( *(?P<done>\d+) / *(?P<left>\d+) tokens\)",
    ),
    pattern(
        "kobold-end",
        "CtxLimit:",
        r"CtxLimit: *(?P<held>\d+)/\d+(?:, Amt: *(?P<amount>\d+)/\d+)?.{0,60}"
        r"Process(?:ed: *(?P<left>\d+) in|: *(?P<seconds>\d+\.\d+)s \((?:[\d.]+ms/T = )?"
        r"(?P<rate>\d+\.\d+)T/s\))(?:.{0,60}Generated: *(?P<generated>\d+)/\d+)?",
    ),
    pattern("mlx-openai-total", "Total Input Tokens:", rf"Tokens: +(?P<n_tokens>{_N})"),
    pattern("mlx-openai-cached", " Cached Tokens:", rf"Tokens: +(?P<cached>{_N})"),
    pattern("mlx-openai-left", "Remaining Tokens:", rf"Tokens: +(?P<left>{_N})"),
    pattern("mlx-openai-reply", "Generation Tokens:", rf"Tokens: +(?P<generated>{_N})"),
    pattern(
        "mlx-openai-progress",
        "Processed ",
        r"Processed +(?P<done>\d+)/(?P<left>\d+) tokens \(",
    ),
)
"""Messages of these servers; a group has the name of the count."""


def number(text: str) -> int:
    """A count, with or without separators of thousands."""
    return int(text.replace(",", ""))


class Counts:
    """The requests of a server's count lines."""

    def __init__(self, server: ServerLog) -> None:
        self._server = server
        self._by_id: dict[str, Observed] = {}

    def take(self, line: int, name: str, fields: Mapping[str, str]) -> None:
        """Put a line's counts into the request that it belongs to."""
        counts = {key: number(fields[key]) for key in NUMBERS if key in fields}
        last = self._server.requests[-1] if self._server.requests else None
        match name:
            case "ollama":
                self._begun(line, counts).takes_snapshots = True
            case "lm-studio-restored":  # its rest is without the last token
                request = self._begun(line, {**counts, "left": counts["left"] + 1})
                request.leaves_last = True
            case "lm-studio-reuse":  # of a prompt that is held whole, one token is decoded
                self._begun(line, counts)
            case "lm-studio-left" if last is not None and last.n_tokens is not None:
                last.processed = counts["left"]
                last.first_cut = max(0, last.n_tokens - counts["left"])
            case "lm-studio-cleared" if last is not None:
                last.refused_cut = True
                last.refused_at = None if last.shared is None else last.shared.value
            case "sglang":
                self._begun(line, counts).ended = True
                self._server.retracted += counts.get("retractions", 0) > 0
            case "omlx" | "omlx-restored":
                known = self._by_id.get(fields["id"]) or self._begun(line, counts)
                self._by_id[fields["id"]], known.restores_blocks = known, True
                _put(known, counts)
                if "stored" in counts:
                    known.depth = counts["shared"], counts["stored"], 0
            case "omlx-reply":
                self._reply_of(line, counts)
            case "kobold-progress" | "mlx-openai-progress":
                self._progress(line, last, counts)
            case "kobold-end":
                self._kobold_end(line, last, counts, fields)
            case "mlx-openai-total" | "kobold-debug":
                self._begun(line, counts)
            case "lm-studio-reply" | "mlx-openai-cached" | "mlx-openai-left" | "mlx-openai-reply":
                if last is not None:
                    _put(last, counts)

    def _begun(self, line: int, counts: Mapping[str, int]) -> Observed:
        request = self._server.begin(line)
        request.shared = UNKNOWN
        _put(request, counts)
        return request

    def _reply_of(self, line: int, counts: Mapping[str, int]) -> None:
        """oMLX: the length of a reply; its line names the prompt's length and no request."""
        for request in self._server.requests:
            whole = request.n_tokens or (request.first_cut or 0) + (request.processed or 0)
            if whole == counts["n_tokens"] and request.generated is None:
                break
        else:
            request = self._begun(line, counts)
        _put(request, counts)
        request.ended = True

    def _progress(self, line: int, last: Observed | None, counts: Mapping[str, int]) -> None:
        """How much of a prompt's uncached part was read."""
        done, left = counts["done"], counts["left"]
        is_new = last is None or last.ended or last.processed not in {None, left}
        if last is None or is_new or (last.done_at is not None and done <= last.done_at):
            last = self._begun(line, {"left": left})
        last.processed, last.done_at = left, done
        last.at_least = max(last.at_least, left)

    def _kobold_end(
        self,
        line: int,
        last: Observed | None,
        counts: Mapping[str, int],
        fields: Mapping[str, str],
    ) -> None:
        """KoboldCpp: the line at a request's end; what it holds is the prompt and the reply."""
        generated = counts.get("generated", counts.get("amount"))
        if last is None or last.ended or last.processed not in {None, counts.get("left")} - {None}:
            is_other = last is None or last.ended or "left" in counts
            last = self._begun(line, {}) if is_other or last is None else last
        if "left" in counts:
            last.processed, last.at_least = counts["left"], max(last.at_least, counts["left"])
        if last.processed is not None and counts["held"] < last.processed:  # it was given up
            last.processed, last.cancelled, last.disconnected = counts["held"], True, None
        elif generated is not None:
            last.generated, last.n_tokens = generated, max(0, counts["held"] - generated)
            if last.processed is None and "rate" in fields:
                seconds, rate = float(fields["seconds"]), float(fields["rate"])
                last.note_cached(last.n_tokens, seconds, rate)
        last.ended = True


NUMBERS: Final = (
    "n_tokens", "cached", "left", "shared", "stored", "generated", "done", "held", "amount",
    "retractions",
)  # fmt: skip


def _put(request: Observed, counts: Mapping[str, int]) -> None:
    if "n_tokens" in counts:
        request.n_tokens = counts["n_tokens"]
    if "cached" in counts:
        request.first_cut = counts["cached"]
    if "left" in counts:
        request.processed = counts["left"]
    if "generated" in counts and request.generated is None:
        request.generated = counts["generated"]
    if "shared" in counts:
        request.shared = printed(counts["shared"])
