"""Cache operations on a tiny model of a Transformers family, held against cold runs."""
