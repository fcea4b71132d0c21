"""llama.cpp: the server, and below it the memory layer in `memory`.

    server_context              the server's state; opening a server
    server_batch                the batch of a pass
    slot                        a slot, its tasks, prompt and checkpoints
    selection                   the slot of a task, and the swap with the prompt cache
    prompt_cache                conversations in host memory
    update_slots                one pass: shift, fill the batch, decode it, process tokens
    checkpoints                 accepting, erasing, creating and dropping checkpoints
    speculative                 drafts, their verification and rollback
    drafter                     the companion
    save                        slot files

`update_slots` follows the function of that name in upstream's `server-context.cpp`, block by block;
docs/architecture.md has the table.
"""
