"""For users: strategies, state machines, contracts for a cache of their own."""
