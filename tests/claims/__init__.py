"""Every sentence is a claim: each is taken apart again and held against the raw run.

played.py     a run with everything it went through: events, histories, what was held between
checks.py     one check per kind of statement; they share no code with what composes them
__main__.py   all scenarios, and searched workloads of every engine: `python -m tests.claims`
"""
