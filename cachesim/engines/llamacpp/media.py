"""Images of a prompt: chunks that are decoded apart. Follows `server_tokens` and `mtmd_helper`.

    prompt   [ text ][ image ][ image ][ text )
    passes     1       2        2        2         each image in decodes of its own

A position is one token here, as in models without M-RoPE.

    slot     [ text ][ image ][ image ][ text )
    prompt   [ text ][ image ][ text )
                             n_past                   a cut of the slot between two images

Trap: `keep_first` looks for a chunk that begins at the token before the cut, and finds none unless
the image has one token. That ends the process until b9713, and from b9873 on fails this and each
further request that shares the first image: the slot stays as it is. b11549 cuts. A cut inside an
image, which fails in all of them, is not simulated.
"""

from cachesim.engines.llamacpp.server_batch import Run
from cachesim.engines.llamacpp.server_context import ServerContext, apply_lora
from cachesim.engines.llamacpp.slot import Slot, Task
from cachesim.engines.llamacpp.vocabulary.events import BatchDecoded
from cachesim.units import Count

FAILED = "failed to process image"
NO_CHUNK = "Chunk not found"


def whole_chunks(task: Task, n_past: int) -> int:
    """A common prefix: an image belongs to it whole or not at all (`get_common_prefix`)."""
    inside = (int(image.start) for image in task.images if image.start < n_past < image.end)
    return next(inside, n_past)


def is_between_images(server: ServerContext, slot: Slot, n_past: int) -> bool:
    """True if the slot has an image before and one after a cut (`keep_first`, `find_chunk`)."""
    tokens, images = slot.prompt.tokens, slot.running.images
    return any(image.end == n_past and image.count > 1 for image in images) and any(
        tuple(tokens[n_past : n_past + len(image)]) == image for image in server.media
    )


def next_image(task: Task, n_tokens: int) -> int:
    """The start of the next image, at which a batch of text ends."""
    starts = (int(image.start) for image in task.images if image.start >= n_tokens)
    return min(starts, default=int(task.n_tokens))


def process_chunks(server: ServerContext, slot: Slot) -> bool | None:
    """Decode the next images; None if one fails, and the request with it.

    Upstream: `process_chunk`, at "check if we should process the image".
    """
    task, decoded = slot.running, False
    while image := next((e for e in task.images if e.start == int(slot.prompt.n_tokens)), None):
        tokens = task.tokens[image.start : image.end]
        run = Run(slot.id, image.start, tokens, output=False)
        # An image is decoded outside of the batch, so its slot's adapters are set for it alone.
        apply_lora(server, slot.lora)
        server.contexts.target.all_outputs = False
        for low in range(0, image.count, server.n_batch):
            view = run.batch(low, min(low + server.n_batch, image.count))
            if server.contexts.target.decode(view) != 0:
                server.finish(slot, "error", "server_error", FAILED)
                return None
        # Its tokens enter the slot only after all of its pieces are decoded.
        slot.prompt.tokens += tokens
        slot.n_prompt_tokens_processed += image.count
        server.emit(BatchDecoded(n_tokens=Count(image.count), slots=(slot.id,)))
        decoded = True
    return decoded
