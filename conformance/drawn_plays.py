"""Plays that are drawn from a seed: small servers with any of their options, and any call.

What `check` and `make hashes` draw are workloads as users have them. These meet bounds: contexts,
pools and prompt caches that are too small, drafts, slot files, clients that disconnect, proposed
patches. `tests/engines/drawn_plays.txt` holds a digest of what each answers, which
`tests/engines/test_plays.py` compares and `CACHESIM_UPDATE_SNAPSHOTS=1` refreshes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, Final

from cachesim.engines.family import Profile, family_of
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.server.word_tokenizer import WordTokenizer
from cachesim.errors import CachesimError, ContractError, UpstreamAbort, UpstreamEndless
from cachesim.model.presets import PRESETS
from cachesim.prove.mlx_lm.server_worker import VOCABULARY
from conformance.real.mlx_lm.server_workloads import draw_workload
from conformance.real.vectors.mlx_server import spec_of
from tests.engines.plays import (  # type: ignore[attr-defined] # a folder has its name
    Play,
    digest,
    in_runs,
)

FILE: Final = Path(__file__).parents[1] / "tests" / "engines" / "drawn_plays.txt"
COUNT: Final = {"ik_llama.cpp": 420, "llama.cpp": 150, "mlx-lm": 140, "sglang": 360}
"""Plays of each engine."""

WORDS: Final = range(265, 510)
BYTES: Final = tuple(3 + byte for byte in b"ab \n")
"""Tokens with a text of one character: common prefixes of ik_llama.cpp are those of texts."""


class Talk:
    """Texts that go on from one another: extended, cut, changed within, asked again."""

    def __init__(self, rng: Random, longest: int, *, texts: bool = False) -> None:
        self.rng, self.longest, self.texts = rng, longest, texts
        self.known: list[list[int]] = []

    def new(self, count: int) -> list[int]:
        rng = self.rng
        if self.texts and rng.random() < 0.5:
            return rng.choices(BYTES, k=count)
        if self.texts and rng.random() < 0.2:
            return [3 + byte for byte in b"<think>" + b"ab" * (count // 4) + b"</think> "]
        return rng.choices(WORDS, k=count)

    def prompt(self) -> list[int]:
        rng = self.rng
        base = rng.choice(self.known[-4:]) if self.known and rng.random() < 0.8 else []
        kept = base[: len(base) - rng.choice((0, 0, 0, 1, 2, 5, rng.randint(0, len(base))))]
        more = rng.choice((0, 0, 1, rng.randint(1, 20), rng.randint(1, self.longest)))
        tail = base[len(kept) + rng.randint(1, 9) :] if kept and rng.random() < 0.15 else []
        found = (kept + self.new(more if kept else max(more, 1)) + tail)[: self.longest]
        return found or self.new(1)

    def request(self, most: int) -> dict[str, Any]:
        """A prompt with the reply that it gets."""
        prompt, reply = self.prompt(), self.new(self.rng.randint(1, most))
        self.known.append(prompt + reply[:-1])
        return {"prompt": in_runs(prompt), "reply": in_runs(reply)}


def ik_llama(rng: Random) -> dict[str, Any]:
    release = profile(rng, "ik_llama.cpp")
    model = rng.choice((*PRESETS, "dense", "hybrid-mtp"))
    window = {"window": rng.choice((4, 32))} if "swa" in model else {}
    context = rng.choice((256, 256, 512, 768))
    drafting = rng.random() < 0.45
    kinds = ("strict_tail", *("window",) * release.startswith("8337e4cd3"))
    kinds += ("attn",) * 3 if model == "hybrid-mtp" else ()
    options: dict[str, Any] = {
        "ctx_size": context,
        "batch_size": rng.choice((4, 7, 16, 64, 2048)),
        "ubatch_size": rng.choice((2, 8, 64, 512)),
        "ctx_checkpoints": rng.choice((0, 1, 2, 4, 32)),
        "ctx_checkpoints_interval": rng.choice((0, 4, 16, 64)),
        "ctx_checkpoints_tolerance": rng.choice((0, 1, 5, 20)),
        "cache_ram": rng.choice((-1, 0, 1, 1)),
        "cache_ram_similarity": rng.choice((0.0, 0.2, 0.5, 0.9)),
        "cache_ram_n_min": rng.choice((-1, 0, 0, 0, 12)),
        "slot_prompt_similarity": rng.choice((0.0, 0.1, 0.5)),
        "reasoning_tokens": rng.choice(("auto", "none", "a,b", "[300],[3")),
        "context_shift": rng.random() < 0.7,
        "parallel": 1 if drafting else rng.choice((1, 1, 2, 3)),
    }
    if drafting:
        options |= {
            "companion": rng.choice(kinds),
            "recurrent_ckpt_mode": rng.choice(("auto", "per-step", "gpu-fallback", "cpu")),
            "draft_max": rng.choice((0, 1, 3, 5)),
            "draft_min": rng.choice((0, 0, 2)),
        }
        if options["companion"] == "window":
            options["companion_window"] = rng.choice((8, 100))
    talk = Talk(
        rng,
        rng.choice((context // 4, context - 30, context - 30, context + 20)),
        texts=rng.random() < 0.4,
    )
    sizes = {"token": rng.choice((1, 10_000, 30_000)), "state": rng.choice((1, 300_000))}
    given = {"preset": model, **window, "sizes": sizes if rng.random() < 0.5 else None}

    def request() -> dict[str, Any]:
        asked = talk.request(rng.choice((1, 6, 30)))
        if rng.random() < 0.15:
            asked |= {"cache_prompt": False}
        if rng.random() < 0.2:
            asked |= {"slot": rng.randrange(3)}
        if rng.random() < 0.2:
            asked |= {"predict": rng.choice((0, 1, 3))}
        if rng.random() < 0.2:
            del asked["reply"]
            asked |= {"predict": rng.choice((-1, 1, 9) if not options["context_shift"] else (1, 9))}
        if rng.random() < 0.3:
            asked["options"] = rng.choice(
                ({"n_keep": rng.choice((-1, 0, 10))}, {"n_discard": rng.choice((1, 7, 30))},
                 {"cancel_after_ubatches": rng.randint(1, 4)})
            )  # fmt: skip
        if "companion" in options and "reply" in asked and rng.random() < 0.7:
            asked["drafts"] = list(drafts(rng, talk.known[-1], len(asked["reply"].split())))
        return asked

    files = ("slot_save", "slot_restore", "slot_restore", "slot_erase")
    return {
        "profile": f"ik_llama.cpp@{release}",
        "model": {key: value for key, value in given.items() if value is not None},
        "options": options,
        "calls": [*calls(rng, request, slots=options["parallel"], files=files, most=7)],
    }


def llama_cpp(rng: Random) -> dict[str, Any]:
    """A play on llama.cpp's server."""
    release = profile(rng, "llama.cpp")
    model = rng.choice((*PRESETS, "dense", "hybrid"))
    window = {"window": rng.choice((4, 32))} if "swa" in model else {}
    context = rng.choice((256, 256, 512, 1024))
    slots = rng.choice((1, 1, 2, 3, -1))
    adapters = rng.random() < 0.15
    companion = "draft-mtp" if "mtp" in model else "draft-simple"
    kind = rng.choice(("none", "none", "ngram-cache", companion, companion))
    options: dict[str, Any] = {
        "ctx_size": context,
        "parallel": slots,
        "kv_unified": rng.random() < 0.4,
        "kv_unified_per_slot": rng.choice((0, 0, 100)),
        "batch_size": rng.choice((7, 16, 64, 2048)),
        "ubatch_size": rng.choice((0, 2, 8, 64, 512)),
        "ctx_checkpoints": rng.choice((0, 1, 2, 4, 32)),
        "checkpoint_min_step": rng.choice((0, 16, 64)),
        "checkpoint_every_nt": rng.choice((-1, 16, 64)),
        "slot_prompt_similarity": rng.choice((0.0, 0.1, 0.5)),
        "cache_ram": rng.choice((-1, 0, 1, 8192)),
        "cache_reuse": rng.choice((0, 0, 2, 16)),
        "context_shift": rng.random() < 0.6,
        "cache_idle_slots": rng.random() < 0.6,
        "swa_full": rng.random() < 0.2,
        "cache_prompt": rng.random() < 0.9,
        "cont_batching": rng.random() < 0.8,
        "keep": rng.choice((-1, 0, 0, 20)),
        "embedding": rng.random() < 0.2,
        "pooling": rng.choice(("none", "none", "last", "rank", "mean")),
        "spec_type": kind,
        "spec_draft_n_max": rng.choice((1, 3, 6)),
        "spec_draft_n_min": rng.choice((0, 0, 2)),
        "lora": "A,B" if adapters else "",
    }
    if kind == "draft-simple":
        options["model_draft"] = rng.choice(("dense", "swa", "hybrid"))
    talk = Talk(rng, rng.choice((60, context // 3, context - 30, context + 20)))
    scales = [[], [{"id": 0, "scale": 0.5}], [{"id": 1, "scale": 1.0}]]

    def request() -> dict[str, Any]:
        asked = talk.request(rng.choice((1, 6, 30)))
        fields: dict[str, Any] = {}
        if rng.random() < 0.1:
            asked |= {"cache_prompt": False}
        if rng.random() < 0.2:
            asked |= {"slot": rng.randrange(3)}
        if rng.random() < 0.3:
            asked |= {"predict": rng.choice((0, 1, 3, 9))}
        if slots > 1 and rng.random() < 0.1:
            asked |= {"completions": 2}
        if rng.random() < 0.3:
            fields |= rng.choice(
                ({"n_keep": rng.choice((-1, 0, 10))}, {"n_discard": rng.choice((1, 7, 30))},
                 {"n_cache_reuse": rng.choice((0, 1, 8))}, {"cache_prompt": rng.random() < 0.5})
            )  # fmt: skip
        if options["embedding"] and rng.random() < 0.3:
            fields["endpoint"] = "rerank" if options["pooling"] == "rank" else "embedding"
        elif rng.random() < 0.05:
            fields |= {"endpoint": "infill", "input_suffix": talk.new(rng.randint(0, 20))}
        elif rng.random() < 0.2 and family.has(family.option("message_spans"), named):
            starts = sorted(rng.choices(range(talk.longest), k=rng.randint(1, 4)))
            fields["message_spans"] = [
                {"role": rng.choice(("user", "user", "assistant")), "start": start}
                for start in starts
                if start < len(talk.known[-1]) - len(asked["reply"].split())
            ]
        if adapters and rng.random() < 0.4:
            fields["lora"] = rng.choice(scales)
        if kind.startswith("draft") and rng.random() < 0.7:
            asked["drafts"] = list(drafts(rng, talk.known[-1], len(asked["reply"].split())))
        return asked | {"options": fields}

    family, named = family_of("llama.cpp"), Profile.parse(f"llama.cpp@{release}")
    options = {name: v for name, v in options.items() if family.has(family.option(name), named)}
    files = ("slot_save", "slot_restore", "slot_restore", "slot_erase")
    return {
        "profile": f"llama.cpp@{release}",
        "model": {"preset": model, **window},
        "options": options,
        "calls": [*calls(rng, request, slots=4 if slots < 0 else slots, files=files, most=7)],
    }


def mlx_lm(rng: Random) -> dict[str, Any]:
    """A play on mlx-lm's server: what real servers are compared on, with patches and all steps."""
    release = profile(rng, "mlx-lm")
    drawn = draw_workload(release.partition("+")[0], 0, rng.randrange(10**6), groups=6)
    tokenizer, spec = WordTokenizer(drawn["template"], VOCABULARY), spec_of(drawn["model"])
    profiled = Profile.parse(f"mlx-lm@{release}")
    options = {
        name: value
        for name, value in drawn["options"].items()
        if FAMILY.has(FAMILY.option(name), profiled)
    }
    asked: list[list[Any]] = []
    for group in drawn["steps"]:
        for each in group:
            if "at" in each:
                asked.append(["step", each["at"]])
            given = {"predict": each["max_tokens"], "reply": in_runs(each["reply"])}
            if "text" in each:
                given["prompt"] = in_runs(map(int, tokenizer.encode(each["text"])))
            else:
                given["messages"] = [(one["role"], one["content"]) for one in each["messages"]]
            if "drafts" in each:
                given["drafts"] = [in_runs(draft) for draft in each["drafts"]]
            named = {field.name for field in FAMILY.fields} & each.keys()
            asked.append(["submit", given | {"options": {name: each[name] for name in named}}])
            if "leaves_after" in each:
                number = sum(call[0] == "submit" for call in asked) - 1
                asked += [["step", each["leaves_after"]], ["cancel", number]]
        asked.append(["run"])
    return {
        "profile": f"mlx-lm@{release}",
        "model": {"preset": "dense", **{one.name: getattr(spec, one.name) for one in fields(spec)}},
        "options": {"tokenizer": "words", "chat_template": drawn["template"], **options},
        "calls": asked,
    }


def drafts(rng: Random, text: list[int], steps: int) -> Iterator[str]:
    """Drafts that are right as far as a draw says; of the reply, the last of a text."""
    at = max(len(text) - steps + 1, 0)
    for _ in range(steps):
        right = text[at : at + rng.randint(0, 4)]
        yield in_runs(right + rng.choices(WORDS, k=rng.randint(0, 2)))
        at += len(right) + 1


def sglang(rng: Random) -> dict[str, Any]:
    """A play on SGLang's server."""
    release = profile(rng, "sglang")
    unified = not release.startswith("0.5.9")
    stores = rng.random() < 0.5
    model = rng.choice((*PRESETS, *("dense", "dense", "swa", "swa", "hybrid") * stores))
    window = {"window": rng.choice((3, 8, 32))} if "swa" in model else {}
    longest = rng.choice((30, 80, 80, 200))
    states = "mamba_radix_cache_strategy" if unified else "mamba_scheduler_strategy"
    strategy = rng.choice(("no_buffer", "extra_buffer"))
    whole = model in {"dense", "swa"} or strategy == "extra_buffer"
    options: dict[str, Any] = {
        "page_size": rng.choice((1, 1, 1, 4, 16)) if whole else 1,
        "max_total_tokens": longest + rng.choice((60, 90, 200)),
        "chunked_prefill_size": rng.choice((-1, 32, 64, 8192)),
        "max_running_requests": rng.choice((1, 2, 4)),
        "enable_mixed_chunk": rng.random() < 0.25,
        "radix_eviction_policy": rng.choice(("lru", "lru", "lfu")),
        "swa_full_tokens_ratio": rng.choice((0.3, 0.8, 1.0)),
        "max_mamba_cache_size": rng.choice((8, 16, 24)),
        states: strategy,
        "mamba_track_interval": 64,
        "speculative_algorithm": rng.choice(("none", "none", "EAGLE")) if whole else "none",
    }
    if (unified or model == "dense") and (stores or rng.random() < 0.5):
        options |= {
            "enable_hierarchical_cache": True,
            "hicache_ratio": rng.choice((0.5, 1.0, 2.0, 4.0) if unified else (1.5, 2.0, 4.0)),
            "hicache_write_policy": rng.choice(
                ("write_through", "write_through", "write_back", "write_through_selective")
            ),
        }
        if stores:
            options |= {
                "hicache_storage_backend": "file",
                "hicache_storage_prefetch_policy": rng.choice(
                    ("best_effort", "wait_complete", "wait_complete", "timeout", "timeout")
                ),
                "prefetch_threshold": rng.choice((1, 16)),
            }
            if unified:
                options |= {
                    "hicache_storage_prefetch_retry_poll_interval": rng.choice((0, 1, 2, 8)),
                    "hicache_storage_prefetch_retry_max_attempts": rng.choice((1, 3, 8)),
                }
    if unified:
        options["mamba_max_states_per_path"] = rng.choice((-1, -1, 2))
    talk = Talk(rng, longest)
    flushes = ("flush_cache",) if "hicache_storage_backend" in options else ()

    def request() -> dict[str, Any]:
        asked = talk.request(rng.choice((1, 5, 40)))
        if rng.random() < 0.2:
            asked["options"] = rng.choice(({"extra_key": "a"}, {"priority": 2}))
        return asked

    return {
        "profile": f"sglang@{release}",
        "model": {"preset": model, **window},
        "options": options,
        "calls": [*calls(rng, request, slots=0, files=flushes, most=12)],
    }


MISCOUNTS: Final = frozenset({"27586"})
"""Defects put back whose symptom is a pool with more slots than it has: a slot is freed twice."""


FORMER: Final = {"sglang@0.5.23": {0: "no-31643", 13: "no-27291"}}
"""Former names of changes taken back, where they stood among the patches: draws stay the same."""


def profile(rng: Random, engine: str) -> str:
    """A release, as often with a patch that fits it."""
    family = family_of(engine)
    release = rng.choice(family.names())
    fitting = [patch.name for patch in family.patches if release in patch.fits]
    for place, name in FORMER.get(f"{engine}@{release}", {}).items():
        fitting.insert(place, name)
    return release + "".join(f"+{each}" for each in rng.sample(fitting, rng.choice((0, 0, 1, 1))))


def calls(
    rng: Random,
    request: Callable[[], Mapping[str, Any]],
    *,
    slots: int,
    files: tuple[str, ...],
    most: int,
) -> Iterator[list[Any]]:
    """Requests alone or together, steps between them, clients that disconnect, actions on slots."""
    asked = 0
    for _ in range(rng.randint(3, most)):
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            yield ["submit", request()]
            asked += 1
            if rng.random() < 0.3:
                yield ["step", rng.randint(1, 5)]
        if rng.random() < 0.12:
            yield ["step", rng.randint(1, 5)]
            yield ["cancel", rng.randint(max(0, asked - 3), asked - 1)]
        yield ["run"]
        if files and rng.random() < (0.2 if slots else 0.35):
            action = rng.choice(files)
            name = [rng.choice("ab")] if action in {"slot_save", "slot_restore"} else []
            yield [action, *([rng.randrange(slots)] if slots else []), *name]


DRAW: Final = {"ik_llama.cpp": ik_llama, "llama.cpp": llama_cpp, "mlx-lm": mlx_lm, "sglang": sglang}


def case(engine: str, number: int) -> dict[str, Any]:
    return {"arithmetic": "ring", **DRAW[engine](Random(f"{engine} {number}"))}


def answered(engine: str, number: int) -> str:
    """The digest of all that a play answers; a `ContractError` where the books do not add up."""
    lines: list[str] = []
    drawn = case(engine, number)
    try:
        play = Play(drawn)
        for name, *given in drawn["calls"]:
            lines += play.call(name, *given)
            play.engine.check_integrity()
        lines += play.end()
    except ContractError:
        if not MISCOUNTS & set(Profile.parse(drawn["profile"]).patches):
            raise
        lines.append("ContractError")
    except (CachesimError, UpstreamAbort, UpstreamEndless) as error:
        lines.append(type(error).__name__)
    return str(digest(lines))


def kept() -> dict[tuple[str, int], str]:
    lines = (line.split() for line in FILE.read_text().splitlines())
    return {(engine, int(number)): value for engine, number, value in lines}


def write() -> None:
    """Write the digests down."""
    FILE.write_text(
        "".join(
            f"{engine} {number} {answered(engine, number)}\n"
            for engine, count in COUNT.items()
            for number in range(count)
        )
    )
