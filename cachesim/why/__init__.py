"""Workloads rebuilt from server logs: each number printed, computed, bounded or assumed.

    bytes -> lines -> messages -> requests as they were observed -> prompts as ropes -> replay
             text     patterns     reading                          rebuild             player

`reading` knows what servers print; `rebuild` makes prompts with exactly the common prefixes that
the log proves, and runs them; `report` renders the result.
"""
