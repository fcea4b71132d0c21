"""llama.cpp: memory, slots, prompt cache, checkpoints, companion."""
