"""The account of a request in words: where its tokens stop matching, and what each cause cost."""

from cachesim.engines.causes import Loss


def sentence(loss: Loss) -> str:
    """One entry of "why": what happened, and from how many tokens to how many."""
    return f"{loss.sentence}: {loss.before} to {loss.after}."
