"""llama.cpp's memory layer: where every token lies, and what is left after each operation.

    rules                       the releases' differences, as data
    batch, allocr, split        what decode is given, whether it is valid, how it is cut
    hashed                      in which order a token's ids come out of a hash set
    cells, track, streams       one attention cache's metadata, by cell, by sequence, by stream
    mask, slots, lanes          what a window hides, which cells a ubatch gets, what it looks at
    rows, attention             keys and values, and the cache around all of these
    window                      a pair of caches, one of them for windowed layers
    recurrent_cells, planes     recurrent rows: whose they are, what they hold
    recurrent, hybrid           the memories of state models, alone and beside attention
    module                      what all memories offer; the store that a network sees
    blob, *_state, sizes        saved states, their fields and their real bytes
    context, capability         decode, save and restore; what can be removed
    create                      which memory a model gets, and how large

`create_context` is the way in.
"""
