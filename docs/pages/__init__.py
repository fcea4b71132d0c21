"""What writes the generated pages of the documentation."""
