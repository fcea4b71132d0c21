"""llama.cpp: the server, and below it the memory layer in `memory`.

    family                      what tools must know: releases, patches, flags, abilities
    rules, profiles             the releases' and patches' differences, as data
    options, build              the server's flags; opening a server
    requests, spans, task       what a request asks for, and how it waits
    server                      the queue and the loop, turn by turn
    server_context              what all stations share
    slot, prompt, checkpoint    a place for a conversation, and what it is believed to hold
    selection, holdings         which slot a task gets, and what was given up for it
    swap, prompt_cache          parking conversations in host memory, and fetching them
    reuse, depth                how much of a slot's tokens is usable; checkpoints that help
    batching, checkpointing     filling and decoding a batch; where states are saved
    generation, shift           taking tokens; making room in a full context
    speculative, drafter        drafts, their verification and rollback; companions
    contexts                    target and companion moved together
    save                        slot files
    events, snapshot, integrity what happened, what is held, whether the books agree

One turn (`server.LlamaCpp.step`): queue -> `selection` -> `swap` -> `reuse` -> `depth` ->
`checkpointing` -> `batching` -> `memory` -> `generation` -> reply.
"""
