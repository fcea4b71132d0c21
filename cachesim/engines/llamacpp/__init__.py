"""llama.cpp: the server, and below it the memory layer in `memory`.

    family                      what tools must know: releases, patches, flags, abilities
    rules, profiles             the releases' and patches' differences, as data
    options, build              the server's flags; opening a server
    requests, spans, task       what a request asks for, and how it waits
    server                      the queue and the loop, turn by turn
    server_context              what all stations share
    slot                        a place for a conversation, and what it is believed to hold
    selection, holdings         which slot a task gets, and what was given up for it
    swap, prompt_cache          parking conversations in host memory, and fetching them
    update_slots                one pass: shift, fill the batch, decode it, take what was sampled
    prompt_start                in it, the start of a prompt: how much of a slot's tokens is usable
    checkpoints                 which are accepted, erased, made and dropped
    generation, speculative     taking a token; drafts, their verification and rollback
    drafter, contexts           the companion; target and companion moved together
    save                        slot files
    *events, snapshot, integrity what happened, what is held, whether the books agree

With upstream's `server-context.cpp` beside it: `update_slots` and `prompt_start` are its function
`update_slots`, block by block; docs/architecture.md has the table.
"""
