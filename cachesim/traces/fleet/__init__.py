"""Several replicas of a server with a router."""
