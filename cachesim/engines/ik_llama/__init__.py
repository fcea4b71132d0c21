"""ik_llama.cpp: what differs from its parent family."""
