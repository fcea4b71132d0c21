"""Random workloads on a simulated server, every answer held against the cold recompute."""

from dataclasses import dataclass, field

from cachesim.engines.mlx_lm.engine import MlxLm
from cachesim.engines.mlx_lm.events import Insertion
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.real.mlx_lm.state import ColdStates


@dataclass(slots=True)
class Watch:
    """Holds every stored state against one computed afresh, number by number."""

    by_numbers: list[bool] = field(default_factory=list)

    def of(self, engine: MlxLm) -> None:
        layers = engine.model.layout.recurrent
        cold = ColdStates(engine.network, layers)
        real = sum(not shape.marks for shape in engine.model.network.shapes)
        real -= real // 2 if layers.paired else 0

        def look(insertion: Insertion, cache: PromptCache) -> None:
            agree = cold.agree(insertion.key, cache[:real])
            self.by_numbers.append(all(each is not False for each in agree))

        engine.server.store.watch = look
