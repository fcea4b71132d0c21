"""Production traces: requests as blocks of tokens, replayed on any engine."""
