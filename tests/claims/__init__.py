"""Every sentence is a claim: each is taken apart again and held against the raw run.

played.py     a run with everything it went through: events, histories, what was held between
watched.py    the cells and rows that every token read, as they lay in memory then
checks.py     one check per kind of statement; they share no code with what composes them
memory.py     sentences about wrong cells and rows, one check per form
causes.py     one check per cause of an engine
__main__.py   all scenarios, and searched workloads of every engine: `python -m tests.claims`
"""
