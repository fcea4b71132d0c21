"""ik_llama.cpp's server: a sibling of llama.cpp's, with rules of its own."""
