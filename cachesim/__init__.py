"""A reference simulator of how LLM servers keep, cut, save and reload their caches."""
