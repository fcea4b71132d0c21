"""Can a context remove a part of a sequence? (`common_context_can_seq_rm`)."""

from enum import Enum


class SeqRm(Enum):
    """Upstream's `common_context_seq_rm_type`."""

    NO = "no"  # there is no memory
    PART = "part"  # any part of a sequence
    FULL = "full"  # only whole sequences
    RS = "bounded"  # as many tokens from the end as there are planes to go back to
