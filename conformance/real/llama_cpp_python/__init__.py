"""The real llama-cpp-python beside the simulated one."""
