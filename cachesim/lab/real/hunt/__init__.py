"""A hunt: workloads with wrong answers in the simulator, played on the real engine.

targets      what is searched: models, flags, and the releases' own fixes laid over one another
proof       the real engine's word on a workload, for each engine that has one
loop        search, make small, prove, go on
report      what was proven, as a report that can be posted
"""
