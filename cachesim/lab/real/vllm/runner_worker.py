"""Runs with an unpacked wheel at hand: plays workloads on vLLM's own scheduler and model runner.

One line of JSON in, one line out, as for the scheduler alone. What comes out is, step by step,
which blocks every layer would read and write for each request, and which states are copied. Kernels
run in Triton's interpreter.
"""

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from typing import Any

from cachesim.lab.real.vllm.marks_worker import WINDOW, Marks
from cachesim.lab.real.vllm.scheduler_worker import Release, Server
from cachesim.lab.real.vllm.v1_worker import RunnerV1
from cachesim.lab.real.vllm.v2_worker import RunnerV2
from cachesim.lab.real.worker_side import Told, answer_lines, fitting, own_output, play_groups

Json = Any
Real = Any  # modules, classes and objects of the release: known only when it runs


class Runs(Server):
    """A server whose steps run on the release's model runner."""

    def __init__(self, release: Release, config: Json) -> None:
        super().__init__(release, config)
        sizes = [group["block"] for group in config["groups"]]
        self.settings.cache_config.block_size = min(sizes)  # as the engine core sets it
        specs = [self._spec(group) for group in config["groups"]]
        self.marks = Marks(config, specs)
        compilation: Real = self.settings.compilation_config
        compilation.cudagraph_mode = type(compilation.cudagraph_mode).NONE
        context = compilation.static_forward_context
        context.clear()
        context.update(self.marks.context())
        made = RunnerV2 if getattr(self.settings, "use_v2_model_runner", False) else RunnerV1
        self.runner = made(self.settings, self._caches(config, specs), self.marks)
        self.steps: list[Json] = []
        self.schedules = self.scheduler.schedule
        self.scheduler.schedule = self._scheduled

    def _scheduled(self) -> Real:
        output = self.schedules()
        if not output.total_num_scheduled_tokens:
            self.runner.runner.execute_model(output)
        return output

    def _caches(self, config: Json, specs: list[Real]) -> Real:
        interface = self.release.caches.interface
        return fitting(
            interface.KVCacheConfig,
            num_blocks=config["blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[
                fitting(
                    interface.KVCacheGroupSpec,
                    layer_names=[f"layer{number}"],
                    kv_cache_spec=spec,
                    is_eagle_group=bool(config["groups"][number].get("eagle")),
                )
                for number, spec in enumerate(specs)
            ],
        )

    def _spec(self, group: Json) -> Real:
        if group["kind"] != "mamba":
            return self.release.caches.spec(group, block=group["block"])
        torch, drafts = importlib.import_module("torch"), group.get("speculative_blocks", 0)
        return fitting(
            self.release.caches.interface.MambaSpec,
            block_size=group["block"],
            shapes=((WINDOW + drafts, 1), (1,)),
            dtypes=(torch.int64, torch.int64),
            mamba_cache_mode=group.get("mode", "align"),
            num_speculative_blocks=drafts,
            page_size_padded=8 * max(group["block"], WINDOW + drafts + 1),
        )

    def play(self, group: Json) -> Json:
        self.steps = []
        done = super().play(group)
        return done if "requests" not in done else {"steps": self.steps}

    def hand_over(self, step: Real, sampled: Mapping[str, list[int]]) -> None:
        rows = self.runner.step(step)
        drafted = {name: len(each) for name, each in step.scheduled_spec_decode_tokens.items()}
        with self.runner.torch.inference_mode():
            self.runner.sampled(dict(sampled), drafted)
        self.steps.append({"rows": rows, "copies": self.marks.moved()})
        super().hand_over(step, sampled)


def interpret_kernels(folder: str, version: str) -> None:
    """Triton from a folder, as an interpreter: before anything of the release is imported.

    The release looks for its own version before it uses Triton. The language is prepared for the
    interpreter once; Triton does so again at every call of a kernel, each time around what it had
    done before.
    """
    sys.path.append(folder)
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    installed = metadata.version
    vars(metadata)["version"] = lambda name: version if name == "vllm" else installed(name)
    interpreter: Real = importlib.import_module("triton.runtime.interpreter")
    prepare, done = interpreter._patch_lang, list[Real]()

    def once(kernel: Real) -> Real:
        if not done:
            done.append(prepare(kernel))
        return Told()

    interpreter._patch_lang = once


def pin_nothing() -> None:
    """A CPU pins no memory, whatever the release asks for."""
    torch: Real = importlib.import_module("torch")
    for name in ("empty", "full", "ones", "tensor", "zeros"):
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_: self


def _unpinned(made: Real) -> Real:
    def plain(*given: Real, pin_memory: bool = False, **named: Real) -> Real:
        del pin_memory
        return made(*given, **named)

    return plain


def told(release: Release, wanted: Json) -> list[Json]:
    """All groups of a workload up to the first that ends in an error."""
    return play_groups(wanted["steps"], Runs(release, wanted["config"]).play)


def main() -> None:
    """Play workloads until the input ends."""
    answers = own_output()
    logging.disable(logging.WARNING)
    root, version, kernels = sys.argv[1:]
    interpret_kernels(kernels, version)
    pin_nothing()
    answer_lines(answers, partial(told, Release(root)))


if __name__ == "__main__":
    main()
