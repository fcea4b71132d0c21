"""Traces of every form: `replay` and `sweep` on good and damaged files, packed, from a pipe."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from conformance.end_to_end.bench import Bench, Case, Result, Settings, Task, bench
from conformance.end_to_end.program import Ran

PUBLISHED: Final = (
    Path(__file__).parents[2] / "tests" / "traces" / "data" / "conversation-300.jsonl.gz"
)
PROFILES: Final = (
    "llama.cpp@b11549", "llama.cpp@b9093", "ik_llama.cpp@8337e4cd3", "mlx-lm@0.32.2",
    "vllm@0.33.0", "sglang@0.5.23", "marconi@paper",
)  # fmt: skip
FORMS: Final = ("text", "json", "jsonl")
DAMAGED: Final = frozenset({0, 1, 2})
PLAYED: Final = frozenset({0, 1})
EACH: Final = 4
"""Traces of each form; half of them where the run is not a whole one."""

Line = Any


def tasks(settings: Settings) -> Iterator[Task]:
    """Each form is a task; the forms go on in the list of profiles."""
    count = EACH if settings.whole else EACH // 2
    for at, name in enumerate(WRITERS):
        numbers = range(count * at, count * (at + 1))
        yield Task(name=f"traces of {name}", do=of_form, given=(name, settings.seed, numbers))
    yield Task(name="made traces", do=of_made, given=())


def mooncake(rng: Random) -> list[Line]:
    """Blocks of 512 tokens, as Mooncake publishes them: a stretch of the published file."""
    with gzip.open(PUBLISHED, "rt") as file:
        lines = [json.loads(line) for line in file]
    at = rng.randrange(len(lines) - 40)
    return lines[at : at + rng.randint(2, 40)]


def bailian(rng: Random) -> list[Line]:
    """Blocks of 16 tokens and times in seconds, as Bailian publishes them."""
    lines: list[Line] = []
    chats: list[list[int]] = []
    for number in range(rng.randint(2, 40)):
        chat = list(rng.choice(chats)) if chats and rng.random() < 0.7 else []
        chat += [rng.randrange(10**9) for _ in range(rng.randint(1, 12))]
        chats.append(chat)
        lines.append(
            {
                "chat_id": number, "parent_chat_id": -1, "timestamp": number * 0.5,
                "input_length": len(chat) * 16 - rng.randrange(16), "output_length": 9,
                "type": "text", "turn": 1, "hash_ids": chat,
            }
        )  # fmt: skip
    return lines


def without_output(rng: Random) -> list[Line]:
    """A client's file that does not say how long replies were."""
    return [{k: v for k, v in each.items() if k != "output_length"} for each in mooncake(rng)]


def texts(rng: Random) -> list[Line]:
    """Runs of texts, as `why --trace` writes them."""
    lines: list[Line] = []
    runs: list[list[int]] = []
    for number in range(rng.randint(2, 30)):
        kept = runs[: rng.randint(0, len(runs))]
        runs = [*kept, [2 * number, 0, rng.randint(1, 300)]]
        reply = [2 * number + 1, 0, rng.randint(1, 40)]
        lines.append({"timestamp": 100 * number, "prompt": list(runs), "reply": [reply]})
        runs.append(reply)
    return lines


def events(rng: Random) -> list[Line]:
    """KV events as vLLM publishes them."""
    lines: list[Line] = []
    stored: list[str] = []
    for number in range(rng.randint(2, 40)):
        parent = rng.choice([None, *stored[-6:]])
        fresh = [f"{number}-{at}" for at in range(rng.randint(1, 5))]
        stored += fresh
        event = {
            "type": "BlockStored", "block_hashes": fresh, "parent_block_hash": parent,
            "token_ids": [], "block_size": 16, "lora_id": None,
        }  # fmt: skip
        gone = {"type": "BlockRemoved", "block_hashes": [rng.choice(stored)]}
        batch = [event, gone] if rng.random() < 0.3 else [event]
        lines.append({"ts": number / 10, "events": batch} if number % 3 else [number / 10, batch])
    return lines


WRITERS: Final[dict[str, Callable[[Random], list[Line]]]] = {
    "Mooncake": mooncake,
    "Bailian": bailian,
    "no output_length": without_output,
    "texts": texts,
    "KV events": events,
}


def of_form(name: str, seed: int, numbers: range) -> Result:
    """Replay traces of one form."""
    result = Result()
    for number in numbers:
        rng = Random(f"trace {name} {seed} {number}")
        lines = WRITERS[name](rng)
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with bench(f"trace {name}", result) as place:
            _replayed(place, data, lines, PROFILES[number % len(PROFILES)])
            _from_elsewhere(place, data, number)
            _damaged(place, data, rng)
            _swept(place, number)
    return result


def _replayed(place: Bench, data: bytes, lines: list[Line], profile: str) -> None:
    place.put("trace.jsonl", data)
    words = ["compare", "trace.jsonl", "-p", profile, "-p", "vllm@0.33.0", "--model", "dense"]
    for form in FORMS:
        law = _counts_all(lines) if form == "json" else None
        asked = [*words, "--format", form]
        place.try_(Case(words=asked, form=form, statuses=PLAYED, extra=law))
    verify = ["compare", "trace.jsonl", "-p", profile, "--verify", "2", "--first", "9"]
    place.try_(Case(words=verify, form="--verify", statuses=PLAYED))
    turn = ["compare", "trace.jsonl", "-p", profile, "--turn", "100", "--remember", "50"]
    place.try_(Case(words=turn, form="--turn", statuses=PLAYED))


def _counts_all(lines: list[Line]) -> Callable[[Ran], Iterator[str]]:
    """Every row: parts add up, and no row reuses more than the bound."""

    def law(ran: Ran) -> Iterator[str]:
        found = json.loads(ran.out)
        rows = found["rows"] if isinstance(found, dict) else found
        bound = next((row for row in rows if row.get("profile") == "bound"), None)
        for row in rows:
            cached, prompt = row.get("cached"), row.get("prompt_tokens")
            if cached is None or prompt is None:
                continue
            if cached > prompt:
                yield f"{row['profile']}: {cached} cached of {prompt} prompt tokens"
            if bound is not None and cached > bound["cached"]:
                yield f"{row['profile']}: {cached} cached, and the bound is {bound['cached']}"
            if isinstance(lines[0], dict) and "hash_ids" in lines[0]:
                said = row.get("requests")
                if said is not None and said != len(lines):
                    yield f"{row['profile']}: {said} requests of {len(lines)}"

    return law


def _from_elsewhere(place: Bench, data: bytes, number: int) -> None:
    profile = ["-p", PROFILES[(number + 3) % len(PROFILES)], "--model", "dense"]
    json_too = ["--format", "json"]
    place.try_(Case(words=["compare", "-", *profile, *json_too], form="json", stdin=data,
                    statuses=PLAYED))  # fmt: skip
    place.put("trace.jsonl.gz", gzip.compress(data))
    words = ["compare", "trace.jsonl.gz", *profile]
    place.try_(Case(words=words, statuses=PLAYED))
    place.try_(Case(words=[*words, *json_too], form="json", statuses=PLAYED))


def _damaged(place: Bench, data: bytes, rng: Random) -> None:
    at = rng.randrange(len(data))
    wrong = rng.choice((b"", b"-", b"\x00", b"9" * 40, b"null", b"[", b"\n"))
    place.put("damaged.jsonl", data[:at] + wrong + data[at + 1 :])
    place.put("cut.jsonl", data[: at + 1])
    place.put("cut.jsonl.gz", gzip.compress(data)[: -rng.randint(1, 40)])
    for name in ("damaged.jsonl", "cut.jsonl", "cut.jsonl.gz"):
        for form in ("text", "json"):
            words = ["compare", name, "-p", "llama.cpp@b11549", "--format", form]
            place.try_(Case(words=words, form=form, statuses=DAMAGED))


def _swept(place: Bench, number: int) -> None:
    """A plan with this trace, in each format of `sweep`."""
    profile = PROFILES[(number + 1) % len(PROFILES)]
    place.put(
        "plan.toml",
        (
            'format = 1\n[[trace]]\nfile = "trace.jsonl"\nfirst = 20\n'
            f'[[server]]\nprofile = "bound"\n[[server]]\nprofile = "{profile}"\n'
            'model = ["dense", "hybrid"]\n'
        ).encode()
        if number % 2
        else (
            b'format = 1\n[[trace]]\nfile = "trace.jsonl"\nfirst = 20\n[[server]]\n'
            b'profile = "bound"\n[[server]]\nprofile = "vllm@0.33.0"\nmodel = "dense"\n'
            b"[server.set]\nnum_gpu_blocks_override = [50, 400]\n"
        ),
    )
    for at, form in enumerate(FORMS):
        words = ["sweep", "plan.toml", "--store", f"store-{at}", "--format", form]
        place.try_(Case(words=words, form=form, statuses=PLAYED))
    for flag, name in (("--report", "s.html"), ("--csv", "s.csv"), ("--parquet", "s.parquet")):
        words = ["sweep", "plan.toml", "--store", "store-0", flag, name]
        place.try_(Case(words=words, form=flag, writes=(name,), statuses=PLAYED))


def of_made() -> Result:
    """Traces that are made up, on each engine."""
    result = Result()
    for profile in PROFILES:
        with bench("trace made", result) as place:
            for form in FORMS:
                words = ["compare", "made:60:3", "-p", profile, "--format", form]
                law = _counts_all([{}]) if form == "json" else None
                place.try_(Case(words=words, form=form, statuses=PLAYED, extra=law))
    return result
