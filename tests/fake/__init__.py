"""An engine of its own, as someone would add one: small enough to foresee."""
