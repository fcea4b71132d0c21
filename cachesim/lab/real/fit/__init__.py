"""A search for the rules of a wheel, from what it does on drawn workloads: for every engine."""
