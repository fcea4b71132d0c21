"""One token alone: what the layers compute, for the single row of a decoded token.

Each step stands beside the layer of the same name in `cachesim/model/layers`, which says what is
computed, and gives the same bits with fewer calls: the arrays are there already, cut and shaped,
and a row's norm is a number. `tests/model/test_one.py` holds the two together.
"""
