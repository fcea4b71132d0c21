"""The memory layer of llama.cpp: cells, windows, recurrent rows, hybrids, state blobs, batches."""
