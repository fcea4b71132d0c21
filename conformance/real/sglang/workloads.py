"""Random workloads for both schedulers: every kind of tree, small pools, arrivals, aborts.

Every new token is one that no earlier text has, unless it is copied.
"""

import itertools
import math
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from cachesim.engines.sglang.request import Drafts
from cachesim.engines.sglang.rules import Rules
from cachesim.prove.rows import read_row
from conformance.real.prompts import REPLIES, AgentUsers, Row, Writer

KINDS: Final = (
    "full", "pages", "policy", "pairs", "window", "window-pages", "no-buffer", "extra-buffer",
    "few-states", "pressure", "arrivals", "aborts", "host", "host-parts", "host-back", "storage",
)  # fmt: skip

GRID: Final = 64
"""Interval of saved states with `extra_buffer`: the kernel's chunk."""


def draw(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """Draw a workload; a seed and a number give the same to every release that can."""
    rng = Random(f"sglang {seed} {number}")
    kind = KINDS[number % len(KINDS)]
    longest = rng.choice((40, 90, 200, 400) if kind != "pressure" else (20, 40, 90))
    tiered = kind in TIERED and rules.tree.trees == "unified"
    scarce, stored = tiered and rng.random() < 0.5, tiered and kind == "storage"
    if scarce:
        longest = rng.choice((16, 24, 32))
    elif stored:  # more than one piece of a transfer has
        longest = max(longest, 200)
    config = config_of(rng, kind, longest, rules)
    config |= {"serial": is_serial(seed, number), "resets": True}
    if scarce:
        _shrink(rng, config, longest)
    writer = _Writer(rng, math.lcm(config["page"], rng.choice((1, 16, GRID))), longest)
    steps = []
    groups = rng.randint(3, 10)
    if kind in TIERED:  # what comes back after the device has given it up
        writer.recent, writer.novelty, groups = 40, 0.35, groups if scarce else groups + 8
    if stored:
        writer.novelty = 0.2
    if scarce:
        writer.replies = (1, 1, 2, 4, 12)
    for _ in range(groups):
        incident = rng.choice(INCIDENTS) if stored or scarce else kind
        together = rng.choice((1, 1, 1, 2, 3, 5) if incident not in CROWDS else (2, 3, 5, 8))
        steps.append(writer.group(together, incident))
        if stored and rng.random() < 0.3:
            steps.append([{"reset": True}])
    thinking = Random(f"sglang reasons {seed} {number}")
    if rules.scheduler.strips_reasoning and thinking.random() < 0.1:
        _strip(thinking, config, steps)
    return {"id": f"{kind}-{number}", "config": config, "steps": steps}


def _strip(rng: Random, config: dict[str, Any], steps: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Let most requests reason, of whose replies nothing is kept."""
    config["strips"] = True
    for wanted in itertools.chain.from_iterable(steps):
        if "prompt" in wanted and rng.random() < 0.7:
            wanted["thinks"] = True


def is_serial(seed: int, number: int) -> bool:
    """Some workloads run with `--disable-overlap-schedule`."""
    return Random(f"sglang serial {seed} {number}").random() < 0.1


def draw_mixed(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload in which decoding requests continue beside every chunk of a prompt."""
    drawn = draw(seed, number, rules)
    drawn["config"]["mixes"] = True
    return drawn | {"id": f"mixed-{drawn['id']}"}


PRIORITIES: Final = (None, None, -3, 0, 1, 5, 12, 20, 40)


def draw_priorities(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload of requests of many priorities, which come while others run."""
    drawn, rng = draw(seed, number, rules), Random(f"sglang priorities {seed} {number}")
    drawn["config"] |= {
        "prioritizes": True,
        "low_first": rng.random() < 0.3,
        "threshold": rng.choice((10, 10, 0, 4, -1)),
        "keeps_running": rng.random() < 0.2,
        "retraction": rng.choice(("length", "priority")),
        "max_running": min(drawn["config"]["max_running"], rng.choice((1, 2, 3, 8))),
    }
    steps = together(rng, drawn["steps"])
    for wanted in itertools.chain.from_iterable(steps):
        wanted.pop("priority", None)
        priority = rng.choice(PRIORITIES)
        if priority is not None:
            wanted["priority"] = priority
    return drawn | {"id": f"priorities-{drawn['id']}", "steps": steps}


def draw_policies(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload under a schedule policy, of requests that come while others run."""
    drawn, rng = draw(seed, number, rules), Random(f"sglang policies {seed} {number}")
    known = [queue for queue in POLICIES_OF_QUEUES if rules.tree.trees == "unified" or queue in OLD]
    policy = known[number % len(known)]
    drawn["config"] |= {
        "schedule": policy,
        "seed": rng.randrange(1000),
        "max_running": min(drawn["config"]["max_running"], rng.choice((1, 2, 3, 8))),
    }
    if policy == "lof" and rng.random() < 0.5:
        drawn["config"] |= {"prioritizes": True, "low_first": rng.random() < 0.5}
    steps = together(rng, drawn["steps"])
    for wanted in itertools.chain.from_iterable(steps):
        if rng.random() < 0.7:
            wanted["routing_key"] = rng.choice("abc")
    return drawn | {"id": f"policies-{policy}-{number}", "steps": steps}


OLD: Final = ("lpm", "dfs-weight", "lof", "random", "routing-key")
POLICIES_OF_QUEUES: Final = (*OLD, "hrrn", "shortest-prefill-first")
"""Values of `--schedule-policy` but the default, of 0.5.9 and of 0.5.22."""


def draw_adapters(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload of requests with adapters, which come while others run."""
    drawn, rng = draw(seed, number, rules), Random(f"sglang adapters {seed} {number}")
    drawn["config"]["loras"] = rng.choice((1, 2, 2, 3, 8))
    steps = together(rng, drawn["steps"])
    for wanted in itertools.chain.from_iterable(steps):
        if rng.random() < 0.7:
            wanted["lora"] = rng.choice("12334") * 32
    return drawn | {"id": f"adapters-{drawn['id']}", "steps": steps}


def draw_sessions(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload of requests that continue earlier ones, some of which still run."""
    drawn, rng = draw(seed, number, rules), Random(f"sglang sessions {seed} {number}")
    config, steps = drawn["config"], together(rng, drawn["steps"])
    most = min(config["tokens"], config.get("window_tokens", config["tokens"])) * 2 // 3
    lengths: dict[str, dict[str, int]] = {"S": {}, "T": {}}
    for rid, wanted in enumerate(itertools.chain.from_iterable(steps)):
        if "prompt" not in wanted or wanted.get("images") or rng.random() < 0.2:
            continue
        own = len(read_row(wanted["prompt"])) + wanted["generate"]
        session = rng.choice("ST")
        known = lengths[session]
        fits = [name for name, length in known.items() if length + own < most]
        params: dict[str, Any] = {"id": session}
        if fits and rng.random() < 0.8:
            params["rid"] = rng.choice(fits[-3:])
            params |= {"offset": rng.choice((5, 20, -3))} if rng.random() < 0.2 else {}
            params |= {"replace": True} if rng.random() < 0.2 else {}
            params |= {"drop_previous_output": True} if rng.random() < 0.2 else {}
        elif rng.random() < 0.05:
            params["rid"] = "unknown"
        wanted |= {"session": params, "rid": f"r{rid}"}
        known[f"r{rid}"] = own + known.get(params.get("rid", ""), 0)
    return drawn | {"id": f"sessions-{drawn['id']}", "steps": steps}


def draw_streaming(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload of streaming sessions: turns, with drafts too, that are refused and aborted."""
    rng = Random(f"sglang streaming {seed} {number}")
    base = draw_drafts if rng.random() < 0.4 else draw
    drawn, opened = base(seed, number, rules), 2
    config, steps = drawn["config"] | {"streams": True}, together(rng, drawn["steps"])
    for name in ("tokens", "window_tokens", "states", "max_running"):
        if name in config:  # sessions hold some of each
            config[name] += {"states": 9, "max_running": 3}.get(name, config[name] // 2)
    most = min(config["tokens"], config.get("window_tokens", config["tokens"])) // 4
    lengths = {"S0": 0, "S1": 0}
    rids = (f"r{rid}" for rid in itertools.count())
    for step in steps:
        idle = list(lengths)
        for wanted in step:
            overlaps = rng.random() < 0.02
            names = list(lengths) if overlaps else idle
            if "prompt" not in wanted or wanted.get("images") or not names or rng.random() < 0.2:
                continue
            name = rng.choice(names)
            idle = [each for each in idle if each != name]
            params: dict[str, Any] = {"id": name, "streaming": True}
            if rng.random() < 0.03:
                params[rng.choice(("replace", "drop_previous_output"))] = True
            wanted |= {"session": params, "rid": next(rids)}
            lengths[name] += len(read_row(wanted["prompt"])) + wanted["generate"]
            if lengths[name] > most or rng.random() < 0.05:
                params["close"] = True
                del lengths[name]
                lengths[f"S{opened}"] = 0
                opened += 1
    return drawn | {"id": f"streaming-{drawn['id']}", "config": config, "steps": steps}


def draw_drafts(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload with a drafter, whose rounds accept what each request says in turn."""
    drawn, rng = draw(seed, number, rules), Random(f"sglang drafts {seed} {number}")
    config, topk, steps = drawn["config"], rng.choice((1, 1, 1, 2, 4)), rng.choice((1, 2, 3, 5))
    if rules.tree.trees != "unified" and config["page"] > 1:
        topk = 1  # 0.5.9 takes no other
    if rules.scheduler.drafts_need_buffer and "strategy" in config:
        config["strategy"] = "extra_buffer"
    tokens = steps + 1 if topk == 1 else rng.randint(2, steps * topk + 1)
    sizes = {"steps": steps, "topk": topk, "tokens": tokens}
    page = config["page"]
    room = -(-2 * Drafts(**sizes).per_decode(page) // page) * page
    config |= {
        "eagle": True,
        "drafts": sizes,
        "mixes": rng.random() < 0.2,
        "tokens": config["tokens"] + room,
    }
    if "window_tokens" in config:
        config["window_tokens"] += room
    steps_of = together(rng, drawn["steps"]) if rng.random() < 0.5 else drawn["steps"]
    for wanted in itertools.chain.from_iterable(steps_of):
        if "prompt" in wanted:
            wanted["accepts"] = [rng.randint(1, tokens + 1) for _ in range(rng.randint(1, 6))]
    return drawn | {"id": f"drafts-{drawn['id']}", "steps": steps_of}


def draw_limits(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload with limits of a prefill, of requests that come while others run."""
    drawn, rng = draw(seed, number, rules), Random(f"sglang limits {seed} {number}")
    drawn["config"] |= {
        "most_prefill": rng.choice((None, 1, 2, 3)),
        "conservativeness": rng.choice((0.0, 0.3, 0.7, 1.0, 1.3, 2.0)),
    }
    return drawn | {"id": f"limits-{drawn['id']}", "steps": together(rng, drawn["steps"])}


def draw_thinking(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """A workload of requests of which most reason, and leave nothing of their replies."""
    rng = Random(f"sglang thinking {seed} {number}")
    base = rng.choice((draw, draw, draw, draw_drafts, draw_sessions, draw_streaming))
    drawn = base(seed, number, rules)
    _strip(rng, drawn["config"], drawn["steps"])
    return drawn | {"id": f"thinking-{drawn['id']}"}


def together(rng: Random, steps: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The requests of a few groups at a time, some turns apart."""
    groups: list[list[dict[str, Any]]] = []
    for step in steps:
        first = not groups or len(groups[-1]) > rng.choice((2, 4, 8)) or "reset" in groups[-1][0]
        if first or "reset" in step[0]:
            groups.append([])
        groups[-1] += step
    for group in groups:
        turn = 0
        for wanted in group:
            turn += rng.choice((0, 0, 1, 2, 5, 11))
            wait = wanted.get("aborted", 0) - wanted.get("arrives", 0)
            if "aborted" in wanted:
                wanted["aborted"] = turn + wait
            wanted["arrives"] = turn
    return groups


CROWDS: Final = frozenset({"pressure", "arrivals", "aborts"})

TIERED: Final = frozenset({"host", "host-parts", "host-back", "storage"})
"""With a host beside the device: any model, one with parts, and everything copied late."""

INCIDENTS: Final = ("storage", "storage", "arrivals", "aborts")
"""Kinds of groups of requests for models with a storage below the host."""

POLICIES: Final = ("write_through", "write_through", "write_through_selective", "write_back")


def config_of(rng: Random, kind: str, longest: int, rules: Rules) -> dict[str, Any]:
    """The server of a kind of workloads: the memory of its layers, and its limits."""
    unified = rules.tree.trees == "unified"
    model = _model(rng, kind, unified=unified)
    running = rng.choice((1, 2, 4, 8) if kind != "pressure" else (4, 8))
    config: dict[str, Any] = {
        "kind": model,
        "page": 1,
        "chunk": rng.choice((32, 64, 100, 128)) if rng.random() < 0.5 else 8192,
        "max_running": running,
        "max_len": 4096,
    }
    if kind in CROWDS and rng.random() < 0.6:
        config["ignore_eos"] = False  # counted with a part of what they may generate
    if rng.random() < 0.2:
        config["max_prefill"] = rng.choice((100, 300))
    strategy = rng.choice(("no_buffer", "extra_buffer"))
    if kind in {"no-buffer", "extra-buffer"}:
        strategy = kind.replace("-", "_")
    paged = kind in {"pages", "window-pages"} or (kind != "policy" and rng.random() < 0.3)
    if paged and (model in {"full", "window"} or strategy == "extra_buffer"):
        config["page"] = page = rng.choice((2, 4, 16, 64))
        config["chunk"] = -(-config["chunk"] // page) * page  # the server takes no other
    if kind == "policy" or (kind in CROWDS and model == "full" and rng.random() < 0.5):
        config["policy"] = rng.choice(policies(rules))
    if kind == "pairs" or (kind in {*CROWDS, *TIERED} and rng.random() < 0.2):
        config["eagle"] = True
    if "mamba" in model:
        config |= _states(rng, strategy, running, few=kind in {"few-states", "pressure", *TIERED})
        if unified and rng.random() < 0.2:
            config["cap"] = rng.choice((1, 2, 4))
    if kind in TIERED:
        config |= _host(rng, kind, rules)
    return config | _pool(rng, config, longest, tight=kind in {"pressure", "policy", *TIERED})


def _model(rng: Random, kind: str, *, unified: bool) -> str:
    model = {
        "window": "window",
        "window-pages": "window",
        "no-buffer": "mamba",
        "extra-buffer": "mamba",
        "few-states": "mamba",
    }.get(kind, "full")
    if kind in CROWDS or (kind in TIERED and unified):
        whole = () if kind == "host-parts" else ("full",)
        model = rng.choice((*whole, "window", "mamba"))
    if model != "full" and unified and rng.random() < 0.15:
        model = "window-mamba"
    return model


def _host(rng: Random, kind: str, rules: Rules) -> dict[str, Any]:
    """A host that is larger than the device, or where a release takes it smaller."""
    unified = rules.tree.trees == "unified"
    smaller = (0.2, 0.5) if rules.scheduler.host_may_be_smaller else ()
    ratios = (*smaller, 1.0, 1.5, 2.0, 4.0)
    host: dict[str, Any] = {
        "policy": "write_back" if kind == "host-back" else rng.choice(POLICIES),
        "ratio": rng.choice(ratios),
        "lag": rng.choice((0, 0, 0, 1, 3)),
    }
    if kind == "storage":
        host["storage"] = {
            "policy": rng.choice(("best_effort", "wait_complete", "timeout")),
            "threshold": rng.choice((1, 20, 64)),
            "lag": rng.choice((0, 0, 1, 3)),
            "timeout_base": rng.choice((0.0, 1.0, 2.0)),
            "timeout_per_ki_token": rng.choice((0.25, 20.0)),
        }
    if kind == "storage" and unified:
        host["storage"] |= {
            "acks": rng.choice((0, 1, 1, 2)),
            "interval": rng.choice((0, 1, 2, 8)),
            "attempts": rng.choice((0, 1, 3, 8)),
        }
    by = {"policy": rng.choice(policies(rules))} if rng.random() < 0.2 else {}
    return {"host": host, **by}


def policies(rules: Rules) -> tuple[str, ...]:
    """Values of `--radix-eviction-policy`."""
    both = ("lru", "lfu", "fifo", "mru", "filo", "priority")
    return (*both, "slru") if rules.tree.counts_hits else both


def _states(rng: Random, strategy: str, running: int, *, few: bool) -> dict[str, Any]:
    """Slots for running requests, and some more; few more if `few`."""
    most = running * (3 if strategy == "extra_buffer" else 1)
    room = rng.randint(2, 6) if few else rng.choice((20, 60))
    return {
        "strategy": strategy,
        "states": 3 * running + most + room,
        "interval": rng.choice((64, 128, 256)),
    }


def _pool(rng: Random, config: dict[str, Any], longest: int, *, tight: bool) -> dict[str, Any]:
    page = config["page"]
    one = 2 * longest + 140 + 3 * page
    tokens = one + rng.randint(0, longest) if tight else rng.choice((2, 8)) * one
    tokens = -(-tokens // page) * page
    if "window" not in config["kind"]:
        return {"tokens": tokens}
    window = rng.choice((3, 8, 16, 40, 100))
    share = one if tight else rng.choice((one, tokens))
    return {
        "tokens": tokens,
        "window": window,
        "window_tokens": min(tokens, -(-share // page) * page),
    }


def _shrink(rng: Random, config: dict[str, Any], longest: int) -> None:
    """Room for little more than one request with a short reply; the others queue for it."""
    page = config["page"] = min(config["page"], 4)
    config["max_running"] = min(config["max_running"], rng.choice((1, 2, 3)))
    config["chunk"] = page * rng.choice((4, 8, 2048))
    tokens = 2 * longest + 16 + 3 * page + rng.randint(0, longest)
    config["tokens"] = -(-tokens // page) * page
    if "states" in config:
        config |= _states(rng, config["strategy"], config["max_running"], few=True)
    if "window" in config["kind"]:
        config["window"] = rng.choice((3, 5, 8, 16))
        least = -(-(config["window"] + 16) // page) * page + 3 * page
        config["window_tokens"] = rng.randrange(least, config["tokens"] + 1, page)
    storage = config["host"].get("storage")
    if storage is not None:
        storage["threshold"] = rng.choice((1, 4, 12))
        storage["timeout_per_ki_token"] = 1023.5 / rng.randint(1, longest)  # ends beside a pass


class _Writer(Writer):
    """Requests with a key and a priority."""

    replies: tuple[int, ...] = (1, 1, 2, 5, 20, 40)

    def request(self, *, long: bool) -> dict[str, Any]:
        """Draw a request, with its reply, its key and its priority."""
        rng = self.rng
        wanted = self.next_request((40, 120, 120) if long else self.replies)
        if rng.random() < 0.1:
            wanted["salt"] = rng.choice(("a", "b"))
        if rng.random() < 0.2:
            wanted["priority"] = rng.randint(0, 3)
        return wanted

    def group(self, together: int, kind: str) -> list[dict[str, Any]]:
        """Requests at once, or some turns apart; clients that disconnect after some turns."""
        rng, turn, group = self.rng, 0, []
        for _ in range(together):
            wanted = self.request(long=kind == "pressure")
            if kind in {"arrivals", "aborts"}:
                turn += rng.choice((0, 0, 1, 2, 5))
                wanted["arrives"] = turn
            if kind == "aborts" and rng.random() < 0.5:
                wanted["aborted"] = turn + rng.choice((0, 1, 1, 2, 3, 6, 12))
            group.append(wanted)
        return group


BY_FEATURE: Final = {
    "priorities": draw_priorities,
    "policies": draw_policies,
    "adapters": draw_adapters,
    "sessions": draw_sessions,
    "streaming": draw_streaming,
    "drafts": draw_drafts,
    "thinking": draw_thinking,
    "limits": draw_limits,
}

LONGEST: Final = (2000, 4000, 8000)


def draw_agents(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """Draw a workload: users whose agents send requests in turn, or all at once."""
    rng = Random(f"sglang agents {seed} {number}")
    kind = KINDS[number % len(KINDS)]
    longest = rng.choice(LONGEST)
    config = config_of(rng, kind, longest, rules)
    config |= {"serial": is_serial(seed, number), "resets": True}
    config["max_len"] = longest + max(REPLIES) + 10
    page = config["page"]
    config["chunk"] = -(-rng.choice((128, 512, 2048, 8192)) // page) * page
    users = rng.choice((1, 2, 3))
    steps = _AgentWorkload(rng, kind, users, longest).steps()
    config["mixes"] = rng.random() < 0.3
    return {"id": f"agents-{kind}-{number}", "config": config, "steps": steps}


class _AgentWorkload(AgentUsers):
    """Requests of one to three users' agents."""

    def __init__(self, rng: Random, kind: str, users: int, longest: int) -> None:
        super().__init__(rng, users, longest)
        self._kind = kind

    def steps(self) -> list[list[dict[str, Any]]]:
        steps = []
        for _ in range(self.rng.randint(5, 14)):
            steps.append(self.group())
            if self._kind == "storage" and self.rng.random() < 0.2:
                steps.append([{"reset": True}])
        return steps

    def group(self) -> list[dict[str, Any]]:
        rng, turn = self.rng, 0
        group = super().group()
        if self._kind not in CROWDS and rng.random() < 0.6:
            return group
        for wanted in group:
            turn += rng.choice((0, 0, 1, 2, 5))
            wanted["arrives"] = turn
            if self._kind == "aborts" and rng.random() < 0.3:
                wanted["aborted"] = turn + rng.choice((0, 1, 1, 2, 3, 6, 12))
        return group

    def request(self, prompt: Row, reply: Sequence[int]) -> dict[str, Any]:
        rng, wanted = self.rng, super().request(prompt, reply)
        if rng.random() < 0.1:
            wanted["priority"] = rng.randint(0, 3)
        return wanted
