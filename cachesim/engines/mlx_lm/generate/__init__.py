"""Forward passes over layer caches, and both batch generators."""
