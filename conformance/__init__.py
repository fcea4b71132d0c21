"""The workbench: what proves the program against real engines; it is not installed with it."""
