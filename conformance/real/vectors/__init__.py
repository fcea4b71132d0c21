"""Recorded results of the real engines, replayed on the simulator."""
