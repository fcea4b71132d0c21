"""Minimal stand-ins of upstream suites' helpers, for the proof of an exported test.

`utils.py` is copied beside a test, `llama_server.py` runs in a release's environment: neither
imports anything of this package.
"""
