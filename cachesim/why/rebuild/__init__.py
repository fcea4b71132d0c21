"""Prompts with exactly the common prefixes that a log proves or a recording holds."""
