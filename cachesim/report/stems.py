"""The lines of a tree in text: what stands before the label of each of its rows."""

from cachesim.report.picture_bars import Branch


def stem(branch: Branch) -> str:
    """Lines to later rows, and the corner that joins a node to its parent."""
    lines = "".join("│  " if more else "   " for more in branch.lines)
    return lines if branch.root else f"{lines}{'└─ ' if branch.last else '├─ '}"
