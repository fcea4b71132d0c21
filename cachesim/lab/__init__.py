"""The laboratory: real engines, logs, recordings, traces and lessons, built on the core."""
