"""Options of the policy, under the artifact's names."""

from dataclasses import dataclass

from cachesim.engines.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class MarconiOptions:
    """Capacity, weights, and the model whose costs are counted."""

    capacity_bytes: int = option(
        "",
        "size of the cache: keys, values and states",
        default=100_000_000_000,
        kind="size",
        tried=(100_000_000_000, 200_000_000),
    )
    policy: str = option(
        "",
        "what is evicted first: by score with a tuned weight, by score with a given one, or the "
        "least recently used leaf (the paper's SGLang+)",
        default="tuned",
        choices=("tuned", "weighed", "lru"),
        tried=("tuned", "weighed", "lru"),
    )
    eff_weight: float = option(
        "",
        "the weight of what a node saves per byte against how lately it was used",
        default=0.0,
        low=0.0,
        high=1000.0,
    )
    bootstrap_multiplier: int = option(
        "",
        "the weight is tuned after this many times the requests that fitted before the first "
        "eviction",
        default=5,
        low=1,
        high=1000,
        tried=(5, 1),
    )
    leaves_last_token: bool = option(
        "",
        "whether one token of a prompt is left to compute, and only what was fed is kept; the "
        "artifact counts a whole prompt as reused, and the last sampled token as kept",
        default=False,
        later={"paper": True},
    )
    num_ssm_layers: int = option("", "recurrent layers", default=24, low=0, high=10_000)
    num_attn_layers: int = option("", "attention layers", default=4, low=0, high=10_000)
    num_mlp_layers: int = option("", "MLP layers", default=28, low=0, high=10_000)
    d: int = option("", "the model's width", default=4096, low=1, high=1 << 20)
    n: int = option("", "state size per channel", default=128, low=1, high=1 << 20)
