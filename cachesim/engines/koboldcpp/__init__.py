"""KoboldCpp, over llama.cpp's memory."""
