"""Hugging Face Transformers' continuous batching: a paged cache with prefix sharing.

family      releases and patches
options     fields of `ContinuousBatchingConfig`
cache       sectors and blocks, hashes and references; room for a request, matches, evictions
requests    requests, and their tokens in a batch
scheduler   fifo and prefill first, the safety margin
server      batches; keys and values in blocks and rings; the engine and its snapshots
dynamic     `DynamicCache` by kinds of layers, which the server does not use

`generate` is not simulated here: `cachesim real transformers` runs it.
"""
