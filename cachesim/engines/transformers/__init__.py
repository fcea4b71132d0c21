"""Hugging Face Transformers' continuous batching: a paged cache with prefix sharing.

cache           sectors and blocks, hashes and references; room for a request, matches, evictions
requests        requests, and their tokens in a batch
scheduler       fifo and prefill first, the safety margin
continuous_api  batches; keys and values in blocks and rings
dynamic         `DynamicCache` by kinds of layers, which the server does not use

`generate` is not simulated here: `cachesim real transformers` runs it.
"""
