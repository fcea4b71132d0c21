"""mlx-lm's own server, in a process of its own: a workload goes in, its results come out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.model.spec import ModelSpec
from cachesim.prove.mlx_lm.families import order_of, toy_of
from cachesim.prove.mlx_lm.process import RealProcess
from cachesim.prove.mlx_lm.server_worker import VOCABULARY
from cachesim.prove.playing import Workload
from cachesim.prove.rows import write_row

WORKER: Final = "cachesim.prove.mlx_lm.server_worker"


class RealMlxServer(RealProcess):
    """The server of one release, in a process of its own; a fresh one for each workload."""

    def __init__(self, release: str) -> None:
        super().__init__(release, WORKER)
        self._folder = TemporaryDirectory()
        self._models: dict[ModelSpec, dict[str, Any]] = {}

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._folder.cleanup()

    def _model(self, workload: Workload, model: dict[str, Any]) -> dict[str, Any]:
        """A model with what its class is built with, and its weights in a file."""
        if "family" not in model:
            return model
        spec = toy_of(model, workload.get("vocabulary", VOCABULARY))
        return model | self._order(spec, model.get("ids", ()))

    def _order(self, spec: ModelSpec, ids: Sequence[int] = ()) -> dict[str, Any]:
        if spec not in self._models:
            weights = Path(self._folder.name) / f"{len(self._models)}.npz"
            self._models[spec] = order_of(spec, weights, ids)
        return self._models[spec]

    def _draft(self, workload: Workload) -> dict[str, Any]:
        name = workload["options"].get("draft_model")
        if name is None:
            return {}
        spec = toy_of(workload["model"], workload.get("vocabulary", VOCABULARY))
        draft = MlxOptions(draft_model=name).draft_spec(spec)
        if draft is None:
            return {}
        return {"draft": self._order(replace(draft, family=family_of(draft).name))}

    def play(self, workload: Workload) -> dict[str, Any]:
        """A workload with the real server's results, in the form of the vector files."""
        made = {"model": self._model(workload, workload["model"])} | self._draft(workload)
        more = {n: self._model(workload, model) for n, model in workload.get("models", {}).items()}
        results = self.order(workload | made | {"models": more})
        for group in results:
            for request in group["requests"]:
                request["generated"] = write_row(request["generated"])
                if "prompt" in request:
                    request["prompt"] = write_row(request["prompt"])
            for insertion in group["inserted"]:
                insertion["key"] = write_row(insertion["key"])
        return workload | {"results": results, "steps": workload["steps"][: len(results)]}
