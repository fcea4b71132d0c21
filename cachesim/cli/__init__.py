"""The commands: plain functions behind a thin parser."""
