"""Causes of lost reuse: one for each branch that lowers the number of reusable tokens."""

from cachesim.engines.causes import Cause, last_computed

LAST_TOKEN = last_computed("The last token of a prompt is computed for its logits.")
WHOLE_BLOCKS = Cause(
    id="whole-blocks",
    sentence="a state is kept after every {block} tokens",
    about="A prompt resumes at the last state before it diverges.",
)
