"""Tiny models for `vllm serve`: made, and held against stale states, by an environment's Python.

    python vllm_models.py MODEL FOLDER

Weights are random, and sharp enough that the log probabilities tell contexts apart. A line of JSON
comes back: for each kind of layer, how far log probabilities move if what it keeps is of other
tokens for the last 1, 16 and 100; and how far two equal runs are apart.

right    t0 ... t[n-k] ... t[n-1] | t[n]     what the layers of one kind keep is of other
stale    t0 ... o      ... o      | t[n]     tokens for the last k, all else is right
"""

import importlib
import json
import sys
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

Real: TypeAlias = Any  # modules and objects of the release: known only when it runs

VOCABULARY: Final = 512
MARKS: Final = ("<bos>", "<eos>", "<pad>", "<unk>")
AGES: Final = 1, 16, 100
PROMPT: Final = 140
TRIES: Final = 2
LIKELY: Final = -7.0

COMMON: Final = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
ATTENTION: Final = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
}
WINDOWS: Final = {
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
MODELS: Final[dict[str, dict[str, Real]]] = {
    "dense": {**ATTENTION, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "swa": {
        **ATTENTION, **WINDOWS, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
        "query_pre_attn_scalar": 32,
    },
    "gpt-oss": {
        **ATTENTION, **WINDOWS, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"],
        "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
}  # fmt: skip
"""Configurations by name."""

ZERO_CENTRED: Final = ("gemma3_text",)
"""Models whose norms multiply by one more than their weight."""


def write(name: str, folder: Path) -> Real:
    """Write configuration, tokenizer and weights; the model."""
    torch, library = map(importlib.import_module, ("torch", "transformers"))
    values = {**COMMON, **MODELS[name]}
    kind = values["model_type"]
    config = library.AutoConfig.for_model(**values)
    torch.manual_seed(7)
    model = library.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for place, weight in model.named_parameters():
            draw(place, weight, centred=kind in ZERO_CENTRED)
    model.to(getattr(torch, values["dtype"])).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(values))
    write_tokenizer(folder)
    return model


def draw(place: str, weight: Real, *, centred: bool) -> None:
    """Draw one parameter by its name."""
    width = max(1, weight.shape[-1]) ** -0.5
    if weight.dim() >= 2:
        size = 1.0 if "embed" in place else 2.5 if "lm_head" in place else 1.5
        weight.normal_(0, size * width)
    elif "norm" in place:
        weight.fill_(0.0 if centred else 1.0)
    else:
        weight.normal_(0, 0.1)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of words between blanks."""
    library, parts = map(importlib.import_module, ("transformers", "tokenizers"))
    words = [*MARKS, *(f"w{number}" for number in range(len(MARKS), VOCABULARY))]
    known = {word: number for number, word in enumerate(words)}
    raw = parts.Tokenizer(parts.models.WordLevel(known, unk_token="<unk>"))
    raw.pre_tokenizer = parts.pre_tokenizers.WhitespaceSplit()
    marks = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    library.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", **marks
    ).save_pretrained(folder)


# -- stale states ----------------------------------------------------------------------------------


def moved(model: Real) -> dict[str, dict[str, float]]:
    """How far stale states of each kind move the log probabilities, by kind and age."""
    torch = importlib.import_module("torch")
    chance = torch.Generator().manual_seed(11)
    kinds = kinds_of(model.config)
    found = {kind: dict.fromkeys(map(str, (0, *AGES)), 0.0) for kind in kinds}
    for age, _ in product((0, *AGES), range(TRIES)):
        right = torch.randint(len(MARKS), VOCABULARY, (1, PROMPT + 1), generator=chance)
        other = right.clone()
        if age:
            drawn = torch.randint(len(MARKS), VOCABULARY, (age,), generator=chance)
            other[0, -1 - age : -1] = drawn
        held, taken = (read(model, each[:, :-1]) for each in (right, other))
        fresh = row(model, right, held)
        for kind, layers in kinds.items():
            mixed = deepcopy(held)
            for number in layers:
                mixed.layers[number] = deepcopy(taken.layers[number])
            stale = row(model, right, mixed)
            likely = torch.maximum(fresh, stale) > LIKELY
            far = float((fresh - stale)[likely].abs().max())
            found[kind][str(age)] = max(found[kind][str(age)], far)
    return found


def row(model: Real, tokens: Real, held: Real) -> Real:
    """The log probabilities after the last token, which what is held goes before."""
    torch = importlib.import_module("torch")
    with torch.no_grad():
        answer = model(tokens[:, -1:], past_key_values=deepcopy(held), use_cache=True)
    return torch.log_softmax(answer.logits[0, -1].double(), -1)


def read(model: Real, tokens: Real) -> Real:
    """What the layers keep after a prompt."""
    torch, library = map(importlib.import_module, ("torch", "transformers"))
    cache = library.DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens, past_key_values=cache, use_cache=True)
    return cache


def kinds_of(config: Real) -> dict[str, frozenset[int]]:
    """Numbers of the layers by what they keep."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return {
        kind: frozenset(number for number, own in enumerate(kinds) if own == kind)
        for kind in dict.fromkeys(kinds)
    }


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    model = write(name, folder)
    sys.stdout.write(f"{json.dumps(moved(model))}\n")


if __name__ == "__main__":
    main()
