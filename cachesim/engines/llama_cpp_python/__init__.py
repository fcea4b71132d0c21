"""llama-cpp-python: `Llama`, one sequence over llama.cpp's memory, and its caches of states."""
