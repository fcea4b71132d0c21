"""Finding the rules of a wheel: its servers' replies, and the rules that come nearest to them."""
