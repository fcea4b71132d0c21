"""`cachesim real mlx-lm`: the real cache classes and the real server beside the simulator."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cyclopts import Parameter

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.errors import OptionError
from cachesim.prove import playing
from cachesim.prove.commands import ON_MLX_LM
from cachesim.prove.environment import versions_of
from cachesim.prove.mlx_lm.process import environment_for, played_by
from conformance.real import agreement as agreeing
from conformance.real.fields import judge_fields
from conformance.real.fit import Played, judge_newest
from conformance.real.mlx_lm import vllm_mlx
from conformance.real.mlx_lm.classes import compare_classes
from conformance.real.mlx_lm.compare import Draw, compare_server, overrides
from conformance.real.mlx_lm.logits import compare_mlx_logits
from conformance.real.mlx_lm.server_workloads import draw_agents, draw_models, draw_workload
from conformance.real.mlx_lm.vllm_mlx import RAPID_MLX, VLLM_MLX, compare_images, compare_vllm_mlx

DIFFERING: Final = "settings that differ from a server's start"


FEATURES: Final[Mapping[str, Draw]] = {"models": draw_models}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class MlxFlags:
    """Options of the comparison with mlx-lm's own code.

    Parameters
    ----------
    release
        0.29.1, 0.30.0, 0.30.2, 0.30.4 to 0.30.7, 0.31.1 to 0.31.3, or 0.32.0 to 0.32.2; the newest
        if left out.
    seed
        The seed of everything drawn at random.
    workloads
        How many servers: each is fresh, with random options and 3 to 8 groups of requests.
    sequences
        How many sequences of operations on the classes; as many as workloads if left out.
    first
        The number of the first workload, to come back to one of a longer run.
    agents
        Chats of coding agents: long ones with tools and sub-agents, several users at once.
    feature
        Workloads of one feature: models, whose requests ask for one of two or three.
    logits
        Compare logits with mlx-lm's own models instead, cold and in padded batches, the same
        weights in both.
    vllm_mlx
        Requests on vllm-mlx's own scheduler and prefix cache instead, over mlx-lm 0.31.3.
    rapid_mlx
        The same on Rapid-MLX's.
    images
        With `vllm_mlx`: requests with images, on its scheduler for models that read them, of 0.6.0
        and of 0.5.0, and on the default engine of 0.6.0.
    scenario
        A scenario to run instead, on every release that it names or on `--release` alone: a file,
        a folder, or the name of a shipped one.
    settings
        Print in which settings the comparison differs from `mlx_lm.server --model MODEL`, by its
        own parser, and why no result depends on them, instead. With `vllm_mlx` and `rapid_mlx`:
        from `vllm-mlx serve MODEL` and `rapid-mlx serve MODEL`; with `images`: from its scheduler's
        defaults.
    newest
        Look up the newest version and say whether it still is as the newest release known here; if
        not, fit the rule fields that explain it.
    wheel
        With `newest`: another version, as 0.31.3.

    """

    release: str = ""
    seed: int = 0
    workloads: int = 100
    sequences: int = -1
    first: int = 0
    agents: bool = False
    feature: str = ""
    logits: bool = False
    vllm_mlx: bool = False
    rapid_mlx: bool = False
    images: bool = False
    scenario: str | None = None
    settings: bool = False
    newest: bool = False
    wheel: str = ""


AS_IT_IS: Final = MlxFlags()
"""The default: random operations and requests on the newest release."""


@playing.comparing
def real_mlx_lm(*, flags: MlxFlags = AS_IT_IS) -> int:
    """Run random operations on mlx-lm's own classes, and random requests on its own server.

    Example: cachesim real mlx-lm --release 0.31.3 --workloads 40
    """
    if flags.newest or flags.wheel:
        return _newest(flags)
    if flags.scenario is not None:
        return ON_MLX_LM.play_named(flags.scenario, flags.release)
    if flags.images:
        return _images(flags)
    if flags.vllm_mlx or flags.rapid_mlx:
        wheel = VLLM_MLX if flags.vllm_mlx else RAPID_MLX
        if flags.settings:
            return agreeing.show_overrides(f"{wheel}: {DIFFERING}", vllm_mlx.overrides(wheel))
        return compare_vllm_mlx(flags.seed, flags.workloads, flags.first, wheel=wheel).show()
    flags = replace(flags, release=flags.release or FAMILY.real()[-1])
    environment_for(flags.release).ready()
    if flags.settings:
        title = f"mlx-lm {flags.release}: {DIFFERING}"
        return agreeing.show_overrides(title, overrides(flags.release))
    return _logits(flags) if flags.logits else _random(flags)


def _images(flags: MlxFlags) -> int:
    if not flags.vllm_mlx or flags.rapid_mlx:
        raise OptionError("images are compared on vllm-mlx's scheduler: write --vllm-mlx --images")
    if flags.settings:
        return agreeing.show_overrides(f"{VLLM_MLX}: {DIFFERING}", vllm_mlx.overrides_of_images())
    return max(
        compare_images(
            flags.seed, flags.workloads, flags.first, wheel=wheel, drawing=drawing
        ).show()
        for wheel, drawing in vllm_mlx.ENGINES
    )


def _logits(flags: MlxFlags) -> int:
    found = compare_mlx_logits(flags.release, seed=flags.seed)
    title = f"mlx-lm {flags.release}: logits with the same weights"
    heads = ("prompts", "largest distance", "batches", "wrong", "largest distance", "")
    table = agreeing.table_of_numbers(title, "family", *heads)
    for each in found:
        table.add_row(
            each.family,
            str(each.prompts),
            f"{each.largest:.1e}",
            str(each.batches),
            str(each.wrong),
            f"{each.largest_in_batches:.1e}",
            "equal" if each.agrees else "DIFFERENT",
        )
    playing.console().print(table)
    return 0 if all(each.agrees for each in found) else 1


def _random(flags: MlxFlags, record: Callable[[Played[MlxRules]], None] = lambda _: None) -> int:
    sequences = flags.workloads if flags.sequences < 0 else flags.sequences
    classes = compare_classes(flags.release, flags.seed, sequences, record=record)
    draw: Draw = draw_agents if flags.agents else draw_workload
    if flags.feature:
        draw = playing.named("feature", flags.feature, FEATURES)
    served = compare_server(
        flags.release, flags.seed, flags.workloads, first=flags.first, draw=draw, record=record
    )
    out = playing.console()
    if classes.counts:
        out.print(classes.table())
    out.print(served.table())
    for line in differences(classes, served):
        out.print(line, markup=False)
    agree = classes.difference is None and served.difference is None
    if agree and not classes.total("agreeing"):
        served.require()
    return 0 if agree else 1


def _newest(flags: MlxFlags) -> int:
    release, played = FAMILY.real()[-1], list[Played[MlxRules]]()
    version = flags.wheel or versions_of("mlx-lm")[0]
    with played_by(release, version):
        environment_for(release).ready()
        status = _random(replace(flags, release=release), played.append)
        unknown = judge_fields(FAMILY, version, environment_for(release).site)
    return max(unknown, judge_newest(FAMILY, version, release, status, played))


def differences(classes: agreeing.Agreement, served: agreeing.Agreement) -> Iterator[str]:
    """The first difference of each kind, and how to see it again."""
    if classes.difference is not None:
        sequence, found = classes.difference
        yield f"first difference of the classes: {sequence}, operation {found.step}"
        yield from found.lines()
    if served.difference is not None:
        workload, wrong = served.difference
        yield f"first difference of the server, shrunk: {workload['id']}, request {wrong.step}"
        yield json.dumps({name: workload[name] for name in ("model", "template", "options")})
        yield from (json.dumps(group) for group in workload["steps"])
        yield from wrong.lines()
