"""ik_llama.cpp: the same ground as its parent family, by rules of its own."""
