"""ik_llama.cpp: a server binary that someone has built, beside the simulator."""
