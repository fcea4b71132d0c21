"""TOML in, a Scenario out, and the runner."""
