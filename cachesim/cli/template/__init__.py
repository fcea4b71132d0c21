"""my-engine: an engine for cachesim."""
