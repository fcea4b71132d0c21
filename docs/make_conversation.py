"""Writes the page of the conversation trace from what a sweep found.

    cachesim sweep benchmarks/conversation.toml --traces FOLDER --format json > rows.json
    python docs/make_conversation.py rows.json

Without a file it writes the page again from the rows that are kept beside it. Each sentence takes
its numbers from the rows; one that they do not bear out is an error.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from measured import Measured, hold

from cachesim.report.charts import STYLE, stacked_bars
from cachesim.report.sweep import server_of

NAMED: Final = 6
"""Causes with a colour of their own in the picture."""

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each server."""
    yield "| server | model | flags | reused | share |"
    yield "|---|---|---|--:|--:|"
    for row in rows:
        flags = ", ".join(f"`{name}={value}`" for name, value in row["settings"].items())
        if row["profile"] == "bound":
            yield f"| the bound | | | {row['cached']:,} | {100 * row['rate']:.2f} % |"
            continue
        yield (
            f"| {row['profile']} | {row['model']} | {flags} | {row['cached']:,} | "
            f"{100 * row['rate']:.2f} % |"
        )


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """The page's conclusions; one that the rows contradict raises."""
    bound, *_ = rows
    known = bound["cached"] + sum(bound["lost"].values())
    small = [
        *_of(rows, "llama.cpp", "dense"),
        *_of(rows, "mlx-lm", "dense", prompt_cache_size=1000),
        *_of(rows, "vllm", "dense", num_gpu_blocks_override=5860),
        *_of(rows, "sglang", "dense", max_total_tokens=93760),
    ]
    low, high = (pick(row["rate"] for row in small) for pick in (min, max))
    whole = [
        *_of(rows, "vllm", "dense", num_gpu_blocks_override=400000),
        *_of(rows, "sglang", "dense", max_total_tokens=16000000),
    ]
    hold(fact=high - low < 0.02, what="the servers of equal size are close")
    hold(
        fact=all(bound["rate"] - row["rate"] < 0.001 for row in whole),
        what="the large pools reach it",
    )
    yield (
        f"Of a dense model's prompts, llama.cpp, mlx-lm, vLLM and SGLang reuse {_share(low)} to "
        f"{_share(high)} with room for three million tokens, and vLLM and SGLang "
        f"{_share(whole[0]['rate'])} with room for all; an infinite cache reuses "
        f"{_share(bound['rate'])}. The size makes more difference than the server."
    )
    slots = [row["rate"] for row in _of(rows, "llama.cpp", "dense")]
    hold(fact=len(slots) == 3 and max(slots) - min(slots) < 0.001, what="slots change nothing")
    yield (
        f"Where requests come one after the other, 1, 4 and 8 slots of llama.cpp beside that "
        f"prompt cache differ by {100 * (max(slots) - min(slots)):.2f} % of the tokens at most."
    )
    (few,), (many,) = (
        [row for row in _of(rows, "mlx-lm", "dense") if not row["settings"]],
        _of(rows, "mlx-lm", "dense", prompt_cache_size=1000),
    )
    hold(fact=many["rate"] > 2 * few["rate"], what="more entries help")
    yield (
        f"mlx-lm's ten stored conversations reuse {_share(few['rate'])}, a thousand in as many "
        f"bytes as the others have {_share(many['rate'])}."
    )
    hybrids = _of(rows, "llama.cpp", "hybrid")
    best = max(hybrids, key=lambda row: row["rate"])
    lost = best["lost"]["memory-depth"] + best["lost"]["full-reprocessing"]
    (mlx,) = _of(rows, "mlx-lm", "hybrid")
    hold(fact=best["rate"] < min(slots) and mlx["rate"] < 0.001, what="hybrid models lose")
    yield (
        f"A hybrid model's state cannot be cut back: llama.cpp with `parallel = "
        f"{best['settings']['parallel']}`, the best of three, reuses {_share(best['rate'])}; "
        f"{lost:,} tokens that a slot holds are reprocessed, beyond the last checkpoint before "
        f"them. mlx-lm, which cannot trim such a cache, reuses "
        f"{mlx['cached']:,} tokens of {known:,} that were computed before."
    )
    (near,) = _of(rows, "vllm", "hybrid", num_gpu_blocks_override=800000)
    (far,) = _of(rows, "sglang", "hybrid", max_total_tokens=16000000)
    hold(fact=near["rate"] > far["rate"] > 2 * best["rate"], what="states per block help most")
    yield (
        f"With room for all, vLLM, which keeps a state for each block, reuses "
        f"{_share(near['rate'])} of a hybrid's prompts, and SGLang, which keeps fewer, "
        f"{_share(far['rate'])}: "
        f"{near['lost']['state-missing']:,} and {far['lost']['state-missing']:,} tokens are lost "
        f"where no state was kept."
    )


def _of(rows: Sequence[Row], engine: str, model: str, **settings: int) -> list[Row]:
    return [
        row
        for row in rows
        if row["profile"].startswith(f"{engine}@")
        and row["model"] == model
        and settings.items() <= row["settings"].items()
    ]


def _share(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def picture(rows: Sequence[Row]) -> str:
    """Tokens computed before, as bars: reused, and lost by cause."""
    totals: dict[str, int] = {}
    for row in rows:
        for cause, count in row["lost"].items():
            totals[cause] = totals.get(cause, 0) + max(0, count)
    named = sorted(totals, key=lambda cause: -totals[cause])[:NAMED]
    bars = {}
    for row in rows:
        parts = {"reused": float(row["cached"])}
        parts |= {cause: float(max(0, row["lost"].get(cause, 0))) for cause in named}
        parts["others"] = float(
            sum(max(0, n) for cause, n in row["lost"].items() if cause not in named)
        )
        bars[server_of(row)] = {name: count for name, count in parts.items() if count}
    drawn = stacked_bars(bars, title="tokens computed before: reused, and lost by cause")
    return f"<style>{STYLE}</style>\n{drawn}\n"


def written(rows: Sequence[Row]) -> str:
    """The part of the page that is written here."""
    told = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences(rows), 1))
    return "\n".join([*table(rows), "", "### Results", "", told])


PAGE: Final = Measured(
    name="conversation-trace", maker="make_conversation.py", written=written, picture=picture
)

if __name__ == "__main__":
    PAGE.write(sys.argv[1:])
