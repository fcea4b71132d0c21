"""Runs inside mlx-lm's environment: its own HTTP server with a toy model and a toy tokenizer.

    http_worker.py FOLDER PORT [LEVEL]

The folder gets a model of random weights and a tokenizer of words, as files; the release's own
`main` loads and serves them.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

MARKS = ["<unk>", "<|im_start|>", "<|im_end|>", "<nl>", "system", "user", "assistant", "tool"]
WORDS = 400
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <nl> {% endif %}"
    "{% for m in messages %}<|im_start|> {{ m['role'] }} <nl> {{ m['content'] }} <|im_end|> <nl> "
    "{% endfor %}{% if add_generation_prompt %}<|im_start|> assistant <nl> {% endif %}"
)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 65536,
}


def main() -> None:
    """Write the model and serve it until the process is ended."""
    folder, port = Path(sys.argv[1]), sys.argv[2]
    level = sys.argv[3] if len(sys.argv) > 3 else "ERROR"
    write_model(folder, write_tokenizer(folder))
    sys.argv = ["mlx_lm.server", "--model", str(folder), "--port", port, "--log-level", level]
    importlib.import_module("mlx_lm.server").main()


def write_tokenizer(folder: Path) -> int:
    """Words between blanks; letters for all others. The number of tokens."""
    tokenizers: Any = importlib.import_module("tokenizers")
    letters = [chr(code) for code in range(33, 127)]
    words = list(dict.fromkeys([*MARKS, *letters, *(f"w{index}" for index in range(WORDS))]))
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=MARKS[0])
    made = tokenizers.Tokenizer(model)
    either = tokenizers.Regex(
        r"<\|im_start\|>|<\|im_end\|>|<nl>|<unk>|\bw\d+\b|\b(system|user|assistant|tool)\b|\S"
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(either, "isolated"),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "removed"),
        ]
    )
    fast: Any = importlib.import_module("transformers").PreTrainedTokenizerFast
    marks = {"unk_token": MARKS[0], "eos_token": MARKS[2]}
    fast(tokenizer_object=made, chat_template=TEMPLATE, **marks).save_pretrained(folder)
    return len(words)


def write_model(folder: Path, size: int) -> None:
    """Random weights of mlx-lm's own class."""
    mx: Any = importlib.import_module("mlx.core")
    utils: Any = importlib.import_module("mlx.utils")
    llama: Any = importlib.import_module("mlx_lm.models.llama")
    mx.random.seed(7)
    config = {**CONFIG, "vocab_size": size}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = dict(utils.tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config["eos_token_id"] = MARKS.index("<|im_end|>")
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
