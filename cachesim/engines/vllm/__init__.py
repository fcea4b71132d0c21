"""vLLM: a scheduler over block tables, one hybrid cache manager for all kinds of layers.

family, rules      the differences of releases and patches, as data
options            the server's flags
request            ids of prefixes; requests, chunks and steps
block_pool         references, ids and the free queue
managers           one manager per group: its hits, and the ids that it keeps
coordinator        the common hit of all groups; allocate, cache, free
scheduler          the chunks of a step
runner             the blocks' content, the network over it, an external store
server             the engine, and the accounting of lost reuse
"""
