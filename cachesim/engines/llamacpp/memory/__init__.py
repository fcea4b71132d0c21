"""llama.cpp's memory layer: the cell of every token, and the content after each operation.

    rules                       the differences of releases, as data
    batch                       batches and ubatches, and the split of one into the other
    cells                       metadata of attention cells; the search of cells for a ubatch
    attention                   keys and values, the attention cache, lanes of a ubatch
    hybrid                      a pair of caches with a window; attention beside recurrent rows
    recurrent, recurrent_cells  recurrent memory; its cells, its rows
    module                      the interface of all memories; the store of a network
    blob                        saved states, their fields and their real bytes
    context                     validation of batches, decode, save and restore
    create                      the memory of a model and its size; `can_seq_rm`

`create_context` is the entry point.
"""
