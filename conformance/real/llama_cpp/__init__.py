"""llama.cpp's own servers, driven from outside and compared with the port."""
