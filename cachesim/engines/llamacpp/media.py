"""Images of a prompt: chunks that are decoded apart. Follows `server_tokens` and `mtmd_helper`.

    prompt   [ text ][ image ][ image ][ text )
    passes     1       2        2        2         each image in decodes of its own

A position is one token here, as in models without M-RoPE. Traps that are not simulated: a cut of a
slot between two images that adjoin ends the process until b9713 (`Chunk not found`), is an error
from b9873 on, and is made in b11549; a cut inside an image fails in all of them.
"""

from cachesim.engines.llamacpp.events import BatchDecoded
from cachesim.engines.llamacpp.server_batch import Run
from cachesim.engines.llamacpp.server_context import ServerContext, apply_lora
from cachesim.engines.llamacpp.slot import Slot, Task
from cachesim.units import Count

FAILED = "failed to process image"


def whole_chunks(task: Task, n_past: int) -> int:
    """A common prefix: an image belongs to it whole or not at all (`get_common_prefix`)."""
    inside = (int(each.start) for each in task.images if each.start < n_past < each.end)
    return next(inside, n_past)


def next_image(task: Task, n_tokens: int) -> int:
    """The start of the next image, at which a batch of text ends."""
    starts = (int(each.start) for each in task.images if each.start >= n_tokens)
    return min(starts, default=int(task.n_tokens))


def process_chunks(server: ServerContext, slot: Slot) -> bool | None:
    """Decode the images that come next; None where one fails, and the request with it.

    Upstream: `process_chunk`, at "check if we should process the image".
    """
    task, decoded = slot.running, False
    while image := next((e for e in task.images if e.start == int(slot.prompt.n_tokens)), None):
        tokens = task.tokens[image.start : image.end]
        run = Run(slot.id, image.start, tokens, output=False)
        apply_lora(server, slot.lora)
        server.contexts.target.all_outputs = False
        for low in range(0, image.count, server.n_batch):
            view = run.batch(low, min(low + server.n_batch, image.count))
            if server.contexts.target.decode(view) != 0:
                server.finish(slot, "error", "server_error", FAILED)
                return None
        slot.prompt.tokens += tokens
        slot.n_prompt_tokens_processed += image.count
        server.emit(BatchDecoded(n_tokens=Count(image.count), slots=(slot.id,)))
        decoded = True
    return decoded
