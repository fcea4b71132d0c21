"""The same requests on the real engines; the toy weights in their file formats."""
