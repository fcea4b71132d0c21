"""Ollama's own runner until 0.24, over llama.cpp's memory."""
