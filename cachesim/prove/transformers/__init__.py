"""Cache operations on a tiny model of a Transformers family, compared with uncached runs."""
