"""A scenario as the engine's own test, or as a report in the project's form."""
