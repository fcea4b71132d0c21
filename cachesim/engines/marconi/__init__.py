"""Marconi (MLSys 2025): states at branches and ends, evicted by FLOPs saved per byte.

family     the published artifact, the policy of the paper, and patches
options    capacity, weights, the model that costs are counted for
tree       match, insert, evict, tuning of the weight; FLOPs saved and bytes held
server     keys, values and states of requests; the engine
held       snapshots of the tree
"""
