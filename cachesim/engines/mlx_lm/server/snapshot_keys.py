"""#923's keys: a conversation is looked up and stored without the generation prompt.

    key       [ message 1 ][ message 2 ] ... [ message m ]
    state     [ the same, the generation prompt and the reply, and whatever earlier turns left ]

The key leaves out what the state has folded in, so every state is longer than its key.
"""

from collections.abc import Sequence

from cachesim.engines.chat import ChatTokenizer
from cachesim.engines.chat_templates import Message
from cachesim.engines.mlx_lm.server.rules import ServerRules
from cachesim.engines.mlx_lm.server.segments import message_boundaries
from cachesim.units import Count, Tokens


def snapshot_key(
    rules: ServerRules,
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    prompt: Tokens,
) -> tuple[Tokens, tuple[Count, ...]]:
    """What a prompt is looked up and stored under, and where its messages end.

    Follows `_tokenize_for_cache_key`: the template without the generation prompt. Without #923 the
    prompt is its own key.
    """
    if rules.snapshots is None or not messages:
        return prompt, ()
    key = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    every = rules.snapshots.boundary_after_every_message
    return key, message_boundaries(tokenizer, messages, after_every_message=every)
