"""The model at work over layer caches: forward passes, and both batch generators."""
