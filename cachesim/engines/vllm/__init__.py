"""vLLM: a scheduler over block tables, one hybrid cache manager for all kinds of layers.

request            ids of prefixes; requests, chunks and steps
block_pool         references, ids and the free queue
managers           one manager per group: its hits, and the ids that it keeps
coordinator        the common hit of all groups; allocate, cache, free
scheduler          the chunks of a step
runner             the content of the blocks, and the network over it
"""
