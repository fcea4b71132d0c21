"""The oracle, the verdict, the explanation of a miss."""
