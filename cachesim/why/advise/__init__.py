"""The same requests under other releases, patches, flags and memory."""
