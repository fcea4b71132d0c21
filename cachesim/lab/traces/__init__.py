"""Production traces: requests as blocks of tokens, played in order on any engine."""
