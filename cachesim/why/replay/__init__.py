"""A server without a network that plays requests, and what it did beside what the log says."""
