"""A tokenizer of words for the real server: what it asks of a Hugging Face tokenizer, no more.

Runs in a release's environment, where nothing of cachesim is; it shares no line with the
simulator's own tokenizer, so the two can disagree.
"""

from collections.abc import Mapping, Sequence

MARKS = ["<unk>", "<|im_start|>", "\n", "<|im_end|>", "system", "user", "assistant", "tool"]
THINK, THINK_END = "<think>", "</think>"
PLAIN = ("chatml", "needs-user")
"""Templates without thinking marks."""


class WordVocabulary:
    """Tokens are words; the chat template is written out by hand."""

    bos_token = None
    eos_token_id = 3
    clean_up_tokenization_spaces = False
    all_special_tokens: tuple[str, ...] = ()

    def __init__(self, template: str, size: int) -> None:
        thinks = template not in PLAIN
        self.chat_template = template
        marks = [*MARKS, *([THINK, THINK_END] if thinks else [])]
        self.texts = [*marks, *(f"w{i}" for i in range(size - len(marks)))]
        self.tokens = {text: token for token, text in enumerate(self.texts)}

    def get_vocab(self) -> dict[str, int]:
        """Texts and their tokens."""
        return dict(self.tokens)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002, FBT001, FBT002
        """Words separated by blanks."""
        return [self.tokens.get(word, 0) for word in text.split(" ") if word]

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        """The words of tokens."""
        return " ".join(self.texts[token] for token in tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        """The word of a token."""
        return self.texts[token]

    def convert_tokens_to_ids(self, text: str) -> int:
        """The token of a word."""
        return self.tokens[text]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **_: object,
    ) -> list[int] | str:
        """Start mark, role, newline, words, end mark, newline; then the generation prompt."""
        last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
        words: list[str] = []
        for index, message in enumerate(messages):
            content = self._shown(message, before_user=index < last_user)
            words += ["<|im_start|>", message["role"], "\n", *content, "<|im_end|>", "\n"]
        if add_generation_prompt:
            words += ["<|im_start|>", "assistant", "\n"]
            words += [] if self.chat_template in PLAIN else [THINK, "\n"]
        return [self.tokens.get(word, 0) for word in words] if tokenize else " ".join(words)

    def _shown(self, message: Mapping[str, str], *, before_user: bool) -> list[str]:
        words = [word for word in message["content"].split(" ") if word]
        old_turn = message["role"] == "assistant" and before_user
        if self.chat_template in PLAIN or (
            self.chat_template == "strip-reasoning" and not old_turn
        ):
            return words
        keeps = self.chat_template == "think-tools" and message["role"] == "assistant"
        if keeps and not before_user:
            return [THINK, "\n", *words]
        ends = [i for i, word in enumerate(words) if word == THINK_END]
        return words[ends[-1] + 1 :] if ends else words
