"""Which text a token has when lists are compared as text."""

from functools import cache

from cachesim.engines.byte_tokenizer import BYTES, FIRST_BYTE, ByteTokenizer
from cachesim.engines.ik_llama.matching import TextOf
from cachesim.units import Token


@cache
def texts(chat_template: str) -> TextOf:
    """Token texts under a chat template; a byte is one character, an unknown token its number."""
    own = ByteTokenizer(chat_template).texts

    def text_of(token: Token) -> str:
        if token in own:
            return own[token]
        if FIRST_BYTE <= token < FIRST_BYTE + BYTES:
            return chr(token - FIRST_BYTE)
        return f"[{token}]"

    return text_of
