"""What a log does not say outright: settings, the bytes of a model, bounds on lengths."""
