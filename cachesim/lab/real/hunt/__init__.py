"""A hunt: workloads that the simulator says are wrong, played on the real engine.

targets      what is searched: models, flags, and the releases' own fixes laid over one another
proof       the real engine's word on a workload, for each engine that has one
loop        search, make small, prove, go on
report      what was proven, as a report that can be posted
"""
