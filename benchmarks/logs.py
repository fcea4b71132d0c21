"""A log of 10,000 requests with prompts of 80,000 tokens: read, rebuilt and replayed on one core.

Time is the processor's own, so that a busy machine counts for less. Memory is the most that the
process ever held; whatever ran before in the same process counts too, so run this table alone.
"""

import resource
import time
from collections.abc import Iterator
from io import BytesIO
from typing import Final

from rich.console import Console
from rich.table import Table

from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why

REQUESTS: Final = 10_000
TOKENS: Final = 80_000
GROWTH: Final = 700
"""Tokens that a turn adds to its conversation, and how many of them are the reply."""
REPLY: Final = 200

HEAD: Final = (
    "0.00.001.000 I srv    load_model: loading model '/models/qwen3-next.gguf'\n"
    "0.00.002.000 I srv    load_model: initializing slots, n_slots = 1\n"
    "0.00.002.000 I slot   load_model: id  0 | task -1 | new slot, n_ctx = 131072\n"
    "0.00.003.000 I srv    load_model: context checkpoints enabled, max = 32, min spacing = 256\n"
)


def log_of(requests: int) -> Iterator[str]:
    """A coding agent's day: conversations that grow, and now and then one that starts over."""
    yield HEAD
    held = 0
    for number in range(requests):
        starts_anew = held == 0 or held > TOKENS + 20 * GROWTH
        prompt = TOKENS if starts_anew else held + GROWTH - REPLY
        cached = 0 if starts_anew else held
        at = f"slot update_slots: id  0 | task {number} | "
        if starts_anew and held:
            size = 149.063 + held / 16
            yield f"srv   prompt_save:  - saving prompt with length {held}, total state size = "
            yield f"{size:.3f} MiB (draft: 0.000 MiB)\n"
        if starts_anew:
            yield "slot get_availabl: id  0 | task -1 | selected slot by LRU, t_last = 1\n"
        else:
            yield (
                "slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, "
                f"sim_best = {held / prompt:.3f} (> 0.100 thold), f_keep = 1.000\n"
            )
        held = prompt + REPLY - 1
        yield f"slot launch_slot_: id  0 | task {number} | processing task, is_child = 0\n"
        yield f"{at}new prompt, n_ctx_slot = 131072, n_keep = 0, task.n_tokens = {prompt}\n"
        yield f"{at} cached n_tokens = {cached}, memory_seq_rm [{cached}, end)\n"
        yield f"{at}prompt eval time = 900.00 ms / {prompt - cached} tokens (1.0 ms per token)\n"
        yield f"{at}       eval time = 900.00 ms / {REPLY} tokens (4.5 ms per token)\n"
        yield f"{at}stop processing: n_tokens = {held}, truncated = 0\n"


def run(out: Console) -> None:
    """Print the table."""
    data = "".join(log_of(REQUESTS)).encode()
    begin = time.process_time()
    read = read_files([("a day", BytesIO(data))])
    replays = replays_of(read, UserSettings(profile="b9538"))
    found = why(read, replays)
    seconds = time.process_time() - begin
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    agreement = found["agreement"]
    table = Table(title="a log, read and replayed", title_style="")
    for head in ("requests", "prompt tokens", "agreeing", "seconds", "MiB"):
        table.add_column(head, justify="right")
    table.add_row(
        f"{agreement['requests']:,}",
        f"{found['totals']['prompt_tokens']:,}",
        f"{agreement['agreeing']:,}",
        f"{seconds:.1f}",
        f"{held:,}",
    )
    out.print(table)
