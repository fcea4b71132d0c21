"""A log's lines, or recorded requests, as what they say and nothing more."""
