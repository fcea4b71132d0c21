"""`cachesim check`: search for a wrong answer, or hold two profiles against each other.

plan        what is asked for, and that it can be
budget      how long it may go on, and the bar that shows it
command     the command: the search, the comparison
telling     what is said of them
"""

from cachesim.cli.check.command import check

__all__ = ["check"]
