"""vLLM: a scheduler over block tables, one hybrid cache manager for all kinds of layers.

rules, profiles            the releases' and patches' differences, as data
options                    the server's flags
hashing, request           ids of prefixes; a request as the scheduler sees it
block_pool                 references, ids and the free queue
managers, windows, mamba   one manager per group: what a hit is for it, what it keeps
coordinator                how far the groups' hits agree
manager                    look up, allocate, cache, free
scheduler, drafting        who computes what in a step
pages, runner              the blocks' content, and the network over it
store                      an external store of blocks
account                    why not more was reused
server                     the engine: requests in, replies and events out
"""
