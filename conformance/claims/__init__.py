"""Every sentence is a claim: each is parsed and compared with the raw run.

played.py     a run with its events, its histories, and the content in between
watched.py    the cells and rows that every token read, as they were in memory
checks.py     one check per kind of statement; they share no code with what composes them
memory.py     sentences about wrong cells and rows, one check per form
causes.py     one check per cause of an engine
__main__.py   all scenarios, and searched workloads of every engine: `python -m conformance.claims`
"""
