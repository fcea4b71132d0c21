"""The command line."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("cachesim")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0.1.0"
