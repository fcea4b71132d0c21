"""The cause of each miss, as data: what the command prints, and what it writes as JSON."""
