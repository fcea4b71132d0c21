"""Marconi's published artifact beside the simulated tree, decision by decision."""
