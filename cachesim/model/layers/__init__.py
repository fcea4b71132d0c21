"""The layers of the float network: plain functions and values on arrays.

T   rows of the ubatch          R   T padded to full tiles (rows beyond T are zero and stay zero)
S   sequence sets, L rows each  d   width of a row
"""
