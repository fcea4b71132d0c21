"""The installed program on logs, recordings, traces and headers that real programs wrote.

python -m conformance.end_to_end [PART ...] runs every command over the corpus; part of `make check`
python -m conformance.end_to_end.make          writes the corpus: seeds in, files out
python -m conformance.end_to_end.lives         compares `why` with what real servers answered
"""
