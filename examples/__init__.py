"""Caches of others behind `check_live_cache`: `python -m examples.lmcache`, and so on."""
