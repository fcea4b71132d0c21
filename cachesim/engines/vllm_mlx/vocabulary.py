"""An event and causes of vllm-mlx, beside those of mlx-lm's caches."""

from typing import Final

from cachesim.engines.causes import Cause
from cachesim.engines.events import Event, Tone, event


@event("quiet")
class PreparedAlready(Event):
    """A prompt with the same text and images was prepared before, and is used as it was."""

    images: tuple[str, ...]
    asked: tuple[str, ...]

    def loudness(self) -> Tone:
        return "quiet" if self.images == self.asked else "warn"

    @property
    def sentence(self) -> str:
        prepared = f"an earlier prompt's prepared images are used: {', '.join(self.images)}"
        astray = f"; this prompt has them as {', '.join(self.asked)}"
        return prepared + (astray if self.images != self.asked else "")


TOO_SHORT: Final = Cause(
    id="too-short",
    sentence="fewer than {least} tokens match: such a prefix is not reused",
    about="vllm-mlx stores and reuses no prefix of fewer tokens than its limit.",
)
NO_TOKEN_LEFT: Final = Cause(
    id="no-token-left",
    sentence=(
        "the stored prompt of {entry} tokens covers all {n_tokens}: none is left to feed, and it "
        "is not used"
    ),
    about="vllm-mlx does not take a token back from an entry that covers the whole prompt.",
)

MEDIA_UNCACHED: Final = Cause(
    id="media-uncached",
    sentence="a prompt with images is neither looked up nor stored: all {n_tokens} are processed",
    about="vllm-mlx's prefix cache has prompts of text alone, since its keys do not name images.",
)
IMAGE_AHEAD: Final = Cause(
    id="image-ahead",
    sentence="an image comes after the first {used} tokens, which match: none of them is reused",
    about="vllm-mlx until 0.5.0 continues a stored prompt only with text.",
)

SAME_PROMPT_ALONE: Final = Cause(
    id="same-prompt-alone",
    sentence="only the same text with the same images is found: none of {n_tokens} is reused",
    about="vllm-mlx's default engine keeps a prompt with images under a hash of all of it.",
)
STORED_UNUSED: Final = Cause(
    id="stored-unused",
    sentence="the same prompt is stored, and not used: all {n_tokens} are processed",
    about="vllm-mlx's default engine leaves it to mlx-vlm, which is not given the stored state.",
)
FED_AGAIN: Final = Cause(
    id="fed-again",
    sentence="the stored state of the same prompt is used, and all {n_tokens} are fed after it",
    about="vllm-mlx's default engine streams from a stored state without leaving out its tokens.",
)
