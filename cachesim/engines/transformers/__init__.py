"""Hugging Face Transformers' continuous batching: a paged cache with prefix sharing.

family      releases and patches
options     fields of `ContinuousBatchingConfig`
pool        sectors, and the free blocks in them
allocators  blocks of full attention, rings of windows, the ledger of hashes and references
cache       room for a request, matches, evictions
requests    requests, and what a batch takes of them
scheduler   fifo and prefill first, the safety margin
processor   batches: scheduled, updated; requests that are preempted
runner      keys and values in blocks and rings
server      the engine
held        snapshots of the pool
dynamic     `DynamicCache` by kinds of layers, which the server does not use

`generate` is not simulated here: `cachesim real transformers` runs it.
"""
