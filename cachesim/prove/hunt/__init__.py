"""A hunt: workloads with wrong answers in the simulator, run on the real engine.

proof        the real engine's answer to a workload, for each engine that has one
loop        search, shrink, prove, continue
report      proven findings, as reports to post
"""
