"""Marconi (MLSys 2025): states at branches and ends, evicted by FLOPs saved per byte.

tree    match, insert, evict, tuning of the weight; FLOPs saved and bytes held
"""
