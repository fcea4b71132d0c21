"""Terminal, JSON, HTML: each consumes runs and nothing else."""
