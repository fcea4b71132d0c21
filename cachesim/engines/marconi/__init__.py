"""Marconi (MLSys 2025): states where requests branch and end, evicted by what they save per byte.

rules, profiles    the published artifact, and the policy as the paper has it
options            capacity, weights, the model that costs are counted for
costs              operations saved and bytes held
tree               match, insert, evict, and the tuning of the weight
memory, server     keys, values and states of real requests; the engine
"""
