"""Random workloads for both schedulers: every kind of group, small pools, drafts, salts, branches.

Every new token is one that no earlier text has, unless it is copied.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, Final

from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.groups import COMPRESSED_WINDOW, compressed_groups
from cachesim.engines.vllm.rules import Rules
from cachesim.model.presets import preset
from conformance.real.prompts import REPLIES, AgentUsers, Row, Writer

KINDS: Final = (
    "full", "window", "mamba", "mamba-fine", "three", "chunked", "alone", "eagle", "ngram",
    "pressure", "priority", "arrivals", "store",
)  # fmt: skip
TIGHT: Final = ("pressure", "priority")
"""Kinds of workloads with few blocks."""


CROWDED: Final = ("pressure", "priority", "arrivals")

FURTHER: Final[Mapping[str, tuple[str, ...]]] = {
    "long_prefill_token_threshold": KINDS,
    "max_num_active_seqs": (*KINDS, *CROWDED),
    "prefill_schedule_interval": (*CROWDED, *KINDS),
    "watermark": CROWDED,
    "disable_eagle_block_drop": ("eagle",),
    "disable_hybrid_kv_cache_manager": ("window", "chunked"),
    "num_speculative_tokens_per_batch_size": ("eagle", "ngram"),
    "enable_mamba_shared_prefix_checkpoint": ("eagle",),
}
"""Options that few servers set -> the kinds of workloads in which they show."""


def draw(seed: int, number: int, rules: Rules, *, option: str = "") -> dict[str, Any]:
    """Draw a workload; the same seed and number ask the same of every release that can.

    A named option is set in every workload, else one of all in a third of them.
    """
    rng = Random(f"vllm {seed} {number}")
    kinds = FURTHER.get(option, KINDS)
    kind = kinds[number % len(kinds)]
    config = config_of(rng, kind, rules)
    if option == "enable_mamba_shared_prefix_checkpoint":
        _hash_finely(rng, config, rules, always=True)
    elif kind in {"eagle", "ngram"} and rules.lookup.partial_hits:
        _hash_finely(Random(f"vllm fine {seed} {number}"), config, rules)
    scheduled = Random(f"vllm scheduled {seed} {number}")
    if scheduled.random() < 0.1:
        config["scheduled"] = scheduled.randint(1, config["budget"])
    tight = kind in TIGHT
    longest = rng.choice((40, 90) if tight else (40, 90, 200, 400))
    unit = math.lcm(*(each["block"] for each in config["groups"]))
    writer = _Writer(rng, unit, longest)
    if option == "enable_mamba_shared_prefix_checkpoint":
        writer = _Siblings(rng, config["hash_block"], longest)
    if tight:
        writer.replies = (5, 20, 40, 40)
    steps = []
    for _ in range(rng.randint(3, 10)):
        together = rng.choice((2, 3, 5) if tight else (1, 1, 1, 2, 3, 5))
        group = [writer.request(config.get("drafts", 0)) for _ in range(together)]
        for wanted in group if kind == "store" else ():
            wanted["stored"] = rng.choice((0, rng.randint(1, 2 * longest), 2 * longest))
        if kind in {"priority", "arrivals"}:
            spread(rng, group, urgent=kind == "priority")
        steps.append(group)
    if tight:
        config["blocks"] = smallest(config, writer.largest) + rng.randint(0, 3)
        config["max_seqs"] = 16
    else:
        config["blocks"] = smallest(config, 2 * longest + 60) * rng.choice((2, 8))
    _choose_layers(Random(f"vllm layers {seed} {number}"), config, rules)
    config["synchronous"] = True
    _set_further(Random(f"vllm further {seed} {number}"), config, rules, kind, option)
    return {"id": f"{kind}-{number}", "config": config, "steps": steps}


def overlapping(workload: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """The workload on a server as it starts: with asynchronous scheduling, where the release has
    it beside the drafter.
    """
    config = workload["config"]
    del config["synchronous"]
    searches = config.get("drafts") and not config["eagle"]
    config["overlaps"] = bool(not searches or rules.scheduler.overlaps_ngrams)
    return workload | {"id": f"async-{workload['id']}" if config["overlaps"] else workload["id"]}


DRAFTED: Final = frozenset({"window", "mamba", "mamba-fine", "three", "arrivals", *TIGHT})
"""Kinds of workloads of which half have a drafter too."""


def draw_async(seed: int, number: int, rules: Rules, *, option: str = "") -> dict[str, Any]:
    """A workload on a server as it starts, half of them with a drafter."""
    workload = draw(seed, number, rules, option=option)
    rng = Random(f"vllm drafts {seed} {number}")
    if workload["id"].rpartition("-")[0] in DRAFTED and rng.random() < 0.5:
        draft(rng, workload, rules)
        workload["id"] = f"drafts-{workload['id']}"
    return overlapping(workload, rules)


def draft(rng: Random, workload: dict[str, Any], rules: Rules) -> None:
    """Give the workload's server a drafter: an MTP head or EAGLE, or n-grams."""
    config, drafts, eagle = workload["config"], rng.choice((1, 2, 3)), rng.random() < 0.7
    kinds = {group["kind"] for group in config["groups"]}
    if len(config["groups"]) > len(kinds) > 2:  # the drafter's layer would change the groups
        eagle = False
    config |= {"drafts": drafts, "eagle": eagle, "lookahead_hashes": True}
    config["groups"] = speculative(config["groups"], drafts, rules, eagle=eagle)
    config["blocks"] += len(config["groups"]) * (drafts + 1)
    fit_further(config, rules)
    for wanted in (each for group in workload["steps"] for each in group):
        wanted["accept"] = [rng.randint(0, drafts) for _ in range(3)]


ADAPTERS: Final = (("a", "v1", 1), ("a", "v2", 2), ("b", "v1", 3), ("b", "v1", 4), ("c", "v3", 5))
"""Name, path and number of a load: two paths under a name, and a file that is loaded again."""


def draw_adapters(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload of requests with adapters, of which few run at once; some have a name as salt."""
    rng = Random(f"vllm adapters {seed} {number}")
    drawn = (draw if rng.random() < 0.3 else draw_async)(seed, number, rules)
    config = drawn["config"]
    config["loras"] = rng.choice((1, 1, 1, 2, 3))
    if config.get("drafts"):  # else the server does not start
        most = config["budget"] // (1 + config["drafts"])
        config["max_seqs"] = min(config["max_seqs"], most)
        fit_further(config, rules)
    for group in drawn["steps"]:
        if rng.random() < 0.5 and not any("after" in wanted for wanted in group):
            spread(rng, group, urgent=config.get("policy") == "priority")
        for wanted in group:
            if rng.random() < 0.7:
                wanted["lora"] = rng.choice(ADAPTERS)
    return drawn | {"id": f"adapters-{drawn['id']}"}


def draw_loads(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload beside a store whose loads come steps later, or fail, and which reads on.

    `leaves` is of a prefill server, whose tokens end inside a block.
    """
    rng = Random(f"vllm loads {seed} {number}")
    kind = ("store", "alone", "priority", "eagle", "pressure")[number % 5]
    config = config_of(rng, kind, rules) | {"store": True, "recomputes": rng.random() < 0.5}
    if kind == "alone":
        config["groups"] = [{"kind": "full", "block": rng.choice((4, 8, 16))}]
        config.pop("retention", None)
    config |= {"lookahead_hashes": False} if kind == "eagle" else {}
    config |= {"delivers": Random(f"vllm delivers {seed} {number}").random() < 0.5}
    longest = rng.choice((40, 90, 200))
    writer = _Writer(rng, math.lcm(*(each["block"] for each in config["groups"])), longest)
    by_request = len(config["groups"]) > 1
    steps = []
    for _ in range(rng.randint(3, 8)):
        group = [writer.request(config.get("drafts", 0)) for _ in range(rng.choice((1, 2, 3, 5)))]
        may_fail = True
        for wanted in group:
            wanted["stored"] = rng.choice((0, rng.randint(1, 2 * longest), 2 * longest))
            if rng.random() < 0.7:
                wanted["loads"] = rng.choice((1, 1, 2, 3, 6))
            if "loads" in wanted and rng.random() < 0.3:
                states = any(each["kind"] == "mamba" for each in config["groups"])
                wanted["leaves"] = int(states)
            if rng.random() < 0.3:
                wanted["sends"] = rng.choice((1, 2, 5))
            if rng.random() < 0.3 and may_fail and ("loads" in wanted or not by_request):
                wanted["fails"] = rng.randint(0, 9)
                may_fail = config["recomputes"]  # the real one ends several in any order
        spread(rng, group, urgent=kind == "priority")
        steps.append(group)
    room = smallest(config, writer.largest if kind == "pressure" else 2 * longest + 60)
    config["blocks"] = room + rng.randint(0, room)
    config["max_seqs"] = max(config["max_seqs"], rng.choice((1, 4, 16)))
    _choose_layers(Random(f"vllm layers {seed} {number}"), config, rules)
    config["synchronous"] = True
    drawn = {"id": f"loads-{kind}-{number}", "config": config, "steps": steps}
    return drawn if rng.random() < 0.3 else overlapping(drawn, rules)


def draw_offload(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload whose blocks are stored on the host and come back from there."""
    rng = Random(f"vllm offload {seed} {number}")
    kind = ("dense", "window", "pressure", "priority", "arrivals", "mamba", "three")[number % 7]
    drawn_kind = {"dense": "full", "arrivals": "priority"}.get(kind, kind)
    config = config_of(rng, drawn_kind, rules)
    if kind == "arrivals":
        del config["policy"]
    longest = rng.choice((40, 90, 200))
    writer = _Writer(rng, math.lcm(*(each["block"] for each in config["groups"])), longest)
    steps = []
    for _ in range(rng.randint(4, 12)):
        group = [writer.request(0) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
        if kind in {"priority", "arrivals"}:
            spread(rng, group, urgent=kind == "priority")
        steps.append(group)
    tight = kind in {"priority", "pressure"}
    room = smallest(config, writer.largest if tight else longest + 60)
    config["blocks"] = room + rng.randint(0, room // 2)
    config["max_seqs"] = max(config["max_seqs"], rng.choice((1, 4, 16)))
    factor = rng.choice((1, 1, 1, 2, 3))
    if config.get("retention"):  # a release starts with whole chunks alone
        config["retention"] *= factor
    config["offload"] = {
        "chunks": rng.choice((1, 3, 8, 20, 20, 60, 300)),
        "factor": factor,
        "policy": rng.choice(("lru", "lru", "arc")),
        "threshold": rng.choice((0, 0, 0, 2, 3)),
        "prompt_only": rng.random() < 0.6,
        "steps": rng.choice((1, 1, 2, 4)),
    }
    _choose_layers(Random(f"vllm layers {seed} {number}"), config, rules)
    config["synchronous"] = True
    drawn = {"id": f"offload-{kind}-{number}", "config": config, "steps": steps}
    return drawn if rng.random() < 0.3 else overlapping(drawn, rules)


def draw_compressed(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload of DeepSeek V4, with or without its MTP head."""
    rng = Random(f"vllm compressed {seed} {number}")
    kind = ("full", "eagle", "pressure", "priority", "arrivals")[number % 5]
    tight = kind in TIGHT
    longest = rng.choice((300, 700) if tight else (300, 700, 1600, 3000))
    drafts = rng.choice((1, 2, 3)) if kind == "eagle" or rng.random() < 0.2 else 0
    model = preset("swa", compressed=True, window=COMPRESSED_WINDOW)
    fields = ("kind", "block", "window", "eagle")
    groups = [
        {name: value for name in fields if (value := getattr(compressed_group, name))}
        for compressed_group in compressed_groups(model, rules, drafts=bool(drafts))
    ]
    config: dict[str, Any] = {
        "compressed": True,
        "groups": groups,
        "budget": rng.choice((64, 256, 300, 1024, 8192)),
        "max_seqs": 16 if tight else rng.choice((1, 2, 4, 16)),
        "reserve_full": rng.random() < 0.7,
    }
    if drafts:
        config |= {"drafts": drafts, "eagle": True, "lookahead_hashes": True}
    if kind == "priority":
        config["policy"] = "priority"
    if rules.retention.interval:
        config["retention"] = rng.choice((None, 0, 0, 256, 1024))
    writer = _Writer(rng, 256, longest)
    steps = []
    for _ in range(rng.randint(3, 8)):
        together = rng.choice((2, 3, 5) if tight else (1, 1, 1, 2, 3))
        group = [writer.request(drafts) for _ in range(together)]
        if kind in {"priority", "arrivals"}:
            spread(rng, group, urgent=kind == "priority")
        steps.append(group)
    room = smallest(config, max(writer.largest, 256) if tight else 2 * longest + 60)
    config["blocks"] = room + rng.randint(0, room // 8) if tight else room * rng.choice((2, 6))
    config["synchronous"] = True
    drawn = {"id": f"compressed-{kind}-{number}", "config": config, "steps": steps}
    return drawn if rng.random() < 0.3 else overlapping(drawn, rules)


def spread(rng: Random, group: list[dict[str, Any]], *, urgent: bool) -> None:
    """The requests of a group arrive one after another while others run; some disconnect."""
    turn = 0
    for wanted in group:
        turn += rng.choice((0, 0, 1, 2, 5))
        wanted["after"] = turn
        if urgent:
            wanted["priority"] = rng.choice((-1, -1, 0, 1)) if turn else 0
        if rng.random() < 0.15:
            wanted["abort"] = turn + rng.randint(0, 8)


def config_of(rng: Random, kind: str, rules: Rules) -> dict[str, Any]:
    """The server of a kind of workloads: the memory of its layers, and its limits."""
    block = rng.choice((4, 8, 16))
    full = {"kind": "full", "block": block}
    window = {"kind": "window", "block": block, "window": rng.choice((3, block, 2 * block + 8, 40))}
    states = {"kind": "mamba", "block": block, "mode": "align"}
    config: dict[str, Any] = {
        "budget": rng.choice((16, 32, 64, 8192)) if rng.random() < 0.6 else 8192,
        "max_seqs": rng.choice((1, 2, 4, 16)),
    }
    groups: list[dict[str, Any]] = {
        "full": [full],
        "window": [full, window],
        "mamba": [full, states],
        "mamba-fine": [full, states],
        "three": [full, window, states],
        "chunked": [full, {"kind": "chunked", "block": block, "chunk": block * rng.choice((1, 2))}],
        "alone": [rng.choice((window, states))],
        "eagle": [full, *rng.choice(([], [window], [states], [window, states]))],
        "ngram": [full, *rng.choice(([], [states]))],
        "pressure": [full, *rng.choice(([], [window], [states]))],
        "priority": [full, *rng.choice(([], [window], [states]))],
        "store": [full, *rng.choice(([], [window], [states], [window, states]))],
        "arrivals": [full, *rng.choice(([], [window], [states], [window, states]))],
    }[kind]
    if kind == "window" and rng.random() < 0.3 and rules.lookup.mixed_blocks:
        groups[1] = window | {"block": 2 * block}
    if kind == "mamba-fine" or (kind == "store" and states in groups and rng.random() < 0.5):
        larger = block * rng.choice((2, 4))
        groups = [group | {"block": larger} for group in groups]
        if rules.lookup.partial_hits and rng.random() < 0.7:
            config["hash_block"] = block
    groups = _as_of_layers(rng, groups, drafter=kind == "eagle")
    if kind in {"eagle", "ngram"}:
        config["drafts"] = rng.choice((1, 2, 3))
        config["eagle"] = kind == "eagle"
        config["lookahead_hashes"] = True
        groups = speculative(groups, config["drafts"], rules, eagle=kind == "eagle")
    if not rules.scheduler.accepts_small_budgets:
        held = [group["block"] for group in groups if group["kind"] == "mamba"]
        config["budget"] = max(config["budget"], *held, 0)
    if rng.random() < (0.7 if kind == "priority" else 0.3):
        config["reserve_full"] = False
    if kind == "store":
        config["store"] = True
    if kind == "priority":
        config["policy"] = "priority"
    config["groups"] = groups
    thinned = {"window", "mamba"} if rules.retention.thins_states else {"window"}
    if rules.retention.interval and any(group["kind"] in thinned for group in groups):
        unit = math.lcm(*(group["block"] for group in groups))
        config["retention"] = rng.choice((None, 0, 0, unit, 4 * unit))
    return config


def _hash_finely(
    rng: Random, config: dict[str, Any], rules: Rules, *, always: bool = False
) -> None:
    """Hashes of a part of each block, for servers that verify drafts with groups of two kinds.

    `always`: attention and states.
    """
    if always:
        block, drafts = config["groups"][0]["block"], config["drafts"]
        kinds = (
            {"kind": "full", "block": block},
            {"kind": "mamba", "block": block, "mode": "align"},
        )
        config["groups"] = speculative(kinds, drafts, rules, eagle=True)
        config["retention"] = rng.choice((None, 0, 0, block, 4 * block))
    groups, unit = config["groups"], config["groups"][0]["block"]
    if always or (any(group["kind"] != "full" for group in groups) and rng.random() < 0.5):
        config["hash_block"] = unit
        times = rng.choice((2, 4))
        config["groups"] = [group | {"block": times * unit} for group in groups]
        if not rules.scheduler.accepts_small_budgets:
            config["budget"] = max(config["budget"], times * unit)
        if config.get("retention"):
            config["retention"] *= times


LOCAL: Final = ("window", "chunk")


def options_of(rules: Rules) -> tuple[str, ...]:
    """Those of `FURTHER` that a release with these rules has."""
    names = {release.name for release in FAMILY.releases if release.rules == rules}
    return tuple(option for option in FURTHER if names & set(FAMILY.having(FAMILY.option(option))))


def _set_further(rng: Random, config: dict[str, Any], rules: Rules, kind: str, option: str) -> None:
    """Set the named option, or in a third of the servers any that fits."""
    drafts, groups = config.get("drafts", 0), config["groups"]
    known = options_of(rules)
    if not option and rng.random() < 1 / 3:
        option = rng.choice([each for each in known if kind in FURTHER[each]])
    further: dict[str, Any] = config.setdefault("further", {})
    if option == "long_prefill_token_threshold":
        further[option] = rng.choice((1, 4, 7, 16, 24, 40, 64))
        if "max_num_active_seqs" in known and rng.random() < 0.3:
            further["long_prefill_token_threshold_adaptive"] = True
    elif option == "max_num_active_seqs":
        config["max_seqs"] = max(config["max_seqs"], 2)
        further[option] = rng.randint(1, config["max_seqs"])
    elif option == "prefill_schedule_interval":
        further[option] = rng.choice((2, 3, 5))
    elif option == "disable_eagle_block_drop" and config.get("eagle"):
        further[option] = True
        config["groups"] = [group | {"eagle": False} for group in groups]
    elif option == "num_speculative_tokens_per_batch_size" and drafts:
        ends = sorted(rng.sample(range(1, 8), rng.randint(1, 3)))
        starts = [1, *(end + rng.choice((1, 1, 2)) for end in ends[:-1])]
        ranges = [[a, max(a, b), rng.randint(0, drafts)] for a, b in zip(starts, ends, strict=True)]
        apart = all(before[1] < after[0] for before, after in pairwise(ranges))
        further[option] = str(ranges if apart else ranges[:1])
    elif option == "disable_hybrid_kv_cache_manager":
        further[option] = True
        local = {key: value for group in groups for key, value in group.items() if key in LOCAL}
        config["groups"] = [{"kind": "full", "block": groups[0]["block"]} | local]
        config.pop("retention", None)
    elif option == "enable_mamba_shared_prefix_checkpoint" and config.get("eagle"):
        further[option] = True
        config["lookahead_hashes"] = rng.random() < 0.2  # hits then seldom end inside a block
    elif option == "watermark":
        further[option] = rng.choice((0.02, 0.1, 0.25, 0.5, 0.9))
    fit_further(config, rules)


def fit_further(config: dict[str, Any], rules: Rules) -> None:
    """Raise or lower numbers with which the server would not start."""
    further, drafts = config["further"], config.get("drafts", 0)
    least = 1 + drafts if drafts and rules.scheduler.padding != "never" else 1
    if not rules.scheduler.accepts_small_budgets:
        states = [group["block"] for group in config["groups"] if group["kind"] == "mamba"]
        least = max(least, *states, 1)
    if "long_prefill_token_threshold" in further:
        threshold = further["long_prefill_token_threshold"]
        further["long_prefill_token_threshold"] = max(threshold, least)
    if "max_num_active_seqs" in further:
        further["max_num_active_seqs"] = min(further["max_num_active_seqs"], config["max_seqs"])


def _choose_layers(rng: Random, config: dict[str, Any], rules: Rules) -> None:
    """Layers of the states: those of Mamba-2, of gated delta on FlashInfer, or others."""
    kind = rng.choice(("conv", "ssm", "ssm", "delta"))
    if kind not in rules.state.exporting:
        return
    for group in config["groups"]:
        if group["kind"] == "mamba":
            unit = config.get("hash_block") or group["block"]
            group["checkpoint_alignment"] = 1 if kind == "ssm" else unit


def _as_of_layers(
    rng: Random, groups: list[dict[str, Any]], *, drafter: bool
) -> list[dict[str, Any]]:
    """In the order of a model's layers; several groups of a kind that has two or three times as
    many. With a drafter's layer the attention of three kinds would be two groups: left out.
    """
    if rng.random() < 0.5:
        rng.shuffle(groups)
    others = [group for group in groups if group["kind"] != "full"]
    if len(groups) < 2 or (drafter and len(groups) > 2) or rng.random() < 0.7:
        return groups
    many, times = rng.choice(others), rng.choice((2, 3))
    return [time for group in groups for time in [group] * (times if group is many else 1)]


def speculative(
    groups: Sequence[dict[str, Any]], drafts: int, rules: Rules, *, eagle: bool
) -> list[dict[str, Any]]:
    """The groups of a server that verifies drafts: blocks for them, and the drafter's mark.

    An MTP head where there are states, EAGLE elsewhere, both of full attention.
    """
    mtp = any(each["kind"] == "mamba" for each in groups)
    own = rules.lookup.marks == "drafter" or (rules.lookup.marks == "mtp" and mtp)
    found = []
    for group in groups:
        marked = eagle and (group["kind"] == "full" or not own)
        blocks = {"speculative_blocks": drafts} if group["kind"] == "mamba" else {}
        found.append(group | blocks | ({"eagle": True} if marked else {}))
    return found


def smallest(config: dict[str, Any], tokens: int) -> int:
    """Blocks for a request of `tokens` tokens."""
    return sum(
        -(-tokens // group["block"]) + 4 + group.get("speculative_blocks", 0)
        for group in config["groups"]
    )


class _Writer(Writer):
    """Requests with a salt, and with the accepted counts of their drafts."""

    def __init__(self, rng: Random, unit: int, longest: int) -> None:
        super().__init__(rng, unit, longest)
        self.replies: tuple[int, ...] = (1, 1, 2, 5, 20, 40)
        self.largest = 0  # tokens of the longest request so far, its reply included

    def request(self, drafts: int) -> dict[str, Any]:
        """Draw a request, with its reply, its salt, and the numbers of accepted drafts."""
        rng, wanted = self.rng, self.next_request(self.replies)
        self.largest = max(self.largest, sum(map(len, self.known[-1])))
        if rng.random() < 0.1:
            wanted["salt"] = rng.choice(("a", "b"))
        if drafts:
            wanted["accept"] = [rng.randint(0, drafts) for _ in range(3)]
        return wanted


class _Siblings(_Writer):
    """Many prompts begin with one stem, and go on differently."""

    def __init__(self, rng: Random, unit: int, longest: int) -> None:
        super().__init__(rng, unit, longest)
        self._stem = self.fresh(self.length())

    def prompt(self) -> list[int]:
        """The stem with more after it, or any other prompt."""
        if self.rng.random() < 0.3:
            return super().prompt()
        return self._stem + self.fresh(self.rng.randint(1, self.longest))


LONGEST: Final = (1500, 4000, 8000)


def draw_agents(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """Workload of users whose agents ask in turn, or all at once."""
    rng = Random(f"vllm agents {seed} {number}")
    kind = KINDS[number % len(KINDS)]
    longest = rng.choice(LONGEST)
    config = config_of(rng, kind, rules)
    for group in config["groups"]:
        if group["kind"] == "window":
            group["window"] = rng.choice((group["window"], 100, 500))
    config["budget"] = rng.choice((64, 256, 512, 2048, 8192))
    config["max_seqs"] = rng.choice((2, 4, 16))
    if rng.random() < 0.1:  # a reply may reach the end
        config["max_len"] = longest + 20
    steps = _AgentWorkload(rng, config, kind, longest).steps()
    tight = kind in TIGHT or rng.random() < 0.5
    room = smallest(config, longest + max(REPLIES))
    config["blocks"] = room + rng.randint(0, room // 8) if tight else room * rng.choice((2, 6))
    _choose_layers(Random(f"vllm layers {seed} {number}"), config, rules)
    config["synchronous"] = True
    drawn = {"id": f"agents-{kind}-{number}", "config": config, "steps": steps}
    return drawn if rng.random() < 0.3 else overlapping(drawn, rules)


class _AgentWorkload(AgentUsers):
    """Workload of one to three users with agents."""

    def __init__(self, rng: Random, config: dict[str, Any], kind: str, longest: int) -> None:
        super().__init__(rng, rng.choice((1, 2, 3)), longest)
        self._kind, self._longest = kind, longest
        self._drafts: int = config.get("drafts", 0)

    def steps(self) -> list[list[dict[str, Any]]]:
        return [self.group() for _ in range(self.rng.randint(5, 14))]

    def group(self) -> list[dict[str, Any]]:
        rng = self.rng
        if rng.random() < 0.03:
            return [{"reset": True}]
        group = super().group()
        if self._kind in {"priority", "arrivals"} or rng.random() < 0.4:
            spread(rng, group, urgent=self._kind == "priority")
        return group

    def request(self, prompt: Row, reply: Sequence[int]) -> dict[str, Any]:
        rng, wanted = self.rng, super().request(prompt, reply)
        if self._drafts:
            wanted["accept"] = [rng.randint(0, self._drafts) for _ in range(3)]
        if self._kind == "store":
            most = 2 * self._longest
            wanted["stored"] = rng.choice((0, rng.randint(1, most), most))
        return wanted
