"""`transformers serve` with a toy Llama, for `--start`: for the Python of an environment.

    python transformers_server.py PORT [matches=FILE] [bug] [FLAG ...]

The release's own command serves. `matches`: tokens of each prompt, and those found in the paged
cache, a line each, since no answer has them. `bug`: hashes leave the last token of a block out.
"""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Real = Any  # modules and objects of the release: known only when it runs

WORDS = 124
MARKS = ("<pad>", "<s>", "</s>", "<unk>")
PAGED = "transformers.generation.continuous_batching.cache"
ALLOCATOR = f"{PAGED}_allocators.cache_allocator"


def main() -> None:
    port, *flags = sys.argv[1:]
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = tempfile.mkdtemp()
    write(folder)
    for flag in [each for each in flags if not each.startswith("-") and "=" in each]:
        flags.remove(flag)
        write_matches(Path(flag.partition("=")[2]))
    if "bug" in flags:
        flags.remove("bug")
        leave_last_tokens_out()
    where = ["--host", "127.0.0.1", "--port", port, "--device", "cpu", "--log-level", "error"]
    sys.argv = ["transformers", "serve", folder, *where, *flags]
    importlib.import_module("transformers.cli.transformers").main()


def write(folder: str) -> None:
    """A model of random weights, and a tokenizer of words between blanks."""
    torch: Any = importlib.import_module("torch")
    library: Any = importlib.import_module("transformers")
    parts: Any = importlib.import_module("tokenizers")
    words = [*MARKS, *(f"w{number}" for number in range(WORDS))]
    known = {word: number for number, word in enumerate(words)}
    raw = parts.Tokenizer(parts.models.WordLevel(known, unk_token="<unk>"))
    raw.pre_tokenizer = parts.pre_tokenizers.WhitespaceSplit()
    library.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = library.LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    model = library.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:  # large: attention is not uniform, and a lost key is seen
                weight.normal_(0, 1.0 if "embed" in name else 1.5 / weight.shape[1] ** 0.5)
        model.lm_head.weight[: len(MARKS)] = 0  # no mark is likely: texts leave marks out
    model.save_pretrained(folder)


def write_matches(file: Path) -> None:
    """Append a line for each prompt that is looked up."""
    kind = importlib.import_module(PAGED).PagedAttentionCache
    search = kind.search_prefix_match

    def searched(self: Real, request: str, prompt: Real) -> int:
        found = int(search(self, request, prompt))
        with file.open("a") as lines:
            lines.write(f"{len(prompt)} {found}\n")
        return found

    kind.search_prefix_match = searched


def leave_last_tokens_out() -> None:
    """Let blocks match whose last tokens differ."""
    module: Any = importlib.import_module(ALLOCATOR)
    hashed = module.compute_block_hash
    module.compute_block_hash = lambda parent, tokens: hashed(parent, [*tokens[:-1], 0])


if __name__ == "__main__":
    main()
