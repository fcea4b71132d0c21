"""Rules of Transformers' continuous batching and of its cache classes."""

from dataclasses import dataclass, field

from cachesim.engines.transformers.dynamic import LayerRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a release, one field per difference."""

    registers_last_batch: bool = False
    """The blocks that a request's last batch fills get their hashes."""

    layers: LayerRules = field(default_factory=LayerRules)
    """`DynamicCache`, which the server does not use."""
