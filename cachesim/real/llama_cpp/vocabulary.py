"""The toy vocabulary of the GGUF files: every id has a text of its own, so texts and ids match.

0 <unk>  1 <s>  2 </s>  3..258 bytes  259 <|im_start|>  260 <|im_end|>
261 system  262 user  263 assistant  264 newline  265.. "[265]" and so on
"""

from enum import IntEnum
from typing import Final

from cachesim.engines.byte_tokenizer import FILL_MIDDLE, FILL_PREFIX, FILL_SUFFIX
from cachesim.errors import SpecError
from cachesim.real.llama_cpp.gguf_file import Value, f32, flag, i32, text, u32

BOS, EOS, UNKNOWN, END_OF_TURN = 1, 2, 0, 260

CHAT_TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ '' if loop.first else '\n' }}"
    "{{ t['function']['name'] }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TokenType(IntEnum):
    """What kind of token an id is, in the format's numbers."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


SPECIAL: Final = (
    ("<unk>", TokenType.UNKNOWN),
    ("<s>", TokenType.CONTROL),
    ("</s>", TokenType.CONTROL),
    *((f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)),
    ("<|im_start|>", TokenType.CONTROL),
    ("<|im_end|>", TokenType.CONTROL),
    *((word, TokenType.USER_DEFINED) for word in ("system", "user", "assistant", "\n")),
)


def word(token: int) -> str:
    """The text of an id; the server reads it as that id again (bytes and controls aside)."""
    return SPECIAL[token][0] if token < len(SPECIAL) else f"[{token}]"


def tokenizer_keys(size: int) -> dict[str, Value]:
    """The tokenizer's keys for a vocabulary of that many ids."""
    if size < len(SPECIAL):
        msg = f"a GGUF file needs a vocabulary of {len(SPECIAL)} ids or more, not {size}"
        raise SpecError(msg)
    plain = ((word(token), TokenType.USER_DEFINED) for token in range(len(SPECIAL), size))
    words = (*SPECIAL, *plain)
    return {
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.pre": text("default"),
        "tokenizer.ggml.tokens": text([word for word, _ in words]),
        "tokenizer.ggml.scores": f32([0.0] * size),
        "tokenizer.ggml.token_type": i32([kind.value for _, kind in words]),
        "tokenizer.ggml.bos_token_id": u32(BOS),
        "tokenizer.ggml.eos_token_id": u32(EOS),
        "tokenizer.ggml.unknown_token_id": u32(UNKNOWN),
        "tokenizer.ggml.eot_token_id": u32(END_OF_TURN),
        "tokenizer.ggml.fim_pre_token_id": u32(FILL_PREFIX),
        "tokenizer.ggml.fim_suf_token_id": u32(FILL_SUFFIX),
        "tokenizer.ggml.fim_mid_token_id": u32(FILL_MIDDLE),
        "tokenizer.ggml.add_bos_token": flag(value=False),
        "tokenizer.ggml.add_eos_token": flag(value=False),
        "tokenizer.ggml.add_space_prefix": flag(value=False),
        "tokenizer.chat_template": text(CHAT_TEMPLATE),
    }
