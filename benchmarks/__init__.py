"""Speed, measured side by side with the real engines. `python -m benchmarks` prints the tables."""
