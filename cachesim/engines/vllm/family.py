"""vLLM's releases, patches, options and capabilities."""

from functools import partial
from typing import Final

from cachesim.engines.family import Family, Patch, laying, tagged
from cachesim.engines.option import request_field
from cachesim.engines.vllm import rules
from cachesim.engines.vllm.options import MOST_BLOCKS, VllmOptions, by_device

_release = partial(tagged, package="vllm")

RELEASES: Final = (
    _release("0.19.1", "2026-04-18", rules.RULES_0191, "states at chunk ends, no junction"),
    _release("0.20.2", "2026-05-08", rules.RULES_0202, "the look-ahead block is dropped once"),
    _release("0.21.0", "2026-05-15", rules.RULES_0202, "as 0.20.2"),
    _release("0.22.1", "2026-06-04", rules.RULES_0221, "ids up to where every group can end"),
    _release("0.23.0", "2026-06-15", rules.RULES_0230, "retention of windows, by environment"),
    _release(
        "0.24.0", "2026-06-29", rules.RULES_0240, "junction (#37898), retention of states too"
    ),
    _release("0.25.1", "2026-07-13", rules.RULES_0251, "single tokens beside drafts are padded"),
    _release("0.26.0", "2026-07-25", rules.RULES_0260, "partial hits"),
    _release("0.27.1", "2026-08-11", rules.RULES_0271, "a store is notified of whole blocks"),
    _release("0.28.0", "2026-08-25", rules.RULES_0280, "align mode for every model"),
    _release(
        "0.29.0", "2026-09-09", rules.RULES_0290, "sparse retention, without drafts beside states"
    ),
    _release("0.30.0", "2026-09-22", rules.RULES_0300, "sparse retention by default"),
    _release("0.31.0", "2026-10-03", rules.RULES_0310, "a first chunk of one token is a prefill"),
    _release(
        "0.32.0", "2026-10-17", rules.RULES_0320, "prompts of whole blocks stop one block lower"
    ),
    _release(
        "0.33.0", "2026-11-01", rules.RULES_0330, "ids cover the token after a block for drafters"
    ),
)
"""Oldest first."""

ALL: Final = tuple(release.name for release in RELEASES)
UNTIL_0230: Final = ALL[: ALL.index("0.24.0")]
SINCE_0240: Final = ALL[ALL.index("0.24.0") :]
SINCE_0280: Final = ALL[ALL.index("0.28.0") :]
SINCE_0320: Final = ALL[ALL.index("0.32.0") :]
SEEDED: Final = ("0.29.0", "0.30.0", "0.31.0")


PATCHES: Final[tuple[Patch[rules.Rules], ...]] = (
    Patch(
        name="37898",
        pull=37898,
        about="saves a state where attention still matches and no state does (the junction)",
        fits=UNTIL_0230,
        lay=laying(
            lookup={"reports_junction": True},
            scheduler={"chunk_split": "uncached-prefix", "keeps_junction_of_last": True},
        ),
    ),
    Patch(
        name="47782",
        pull=47782,
        about="sparse retention keeps the junction",
        fits=("0.24.0",),
        lay=laying(retention={"keeps_junction": True}),
    ),
    Patch(
        name="44409",
        pull=44409,
        about="every group holds its hit before any group takes new blocks",
        fits=UNTIL_0230,
        lay=laying(scheduler={"holds_before_taking": True}),
    ),
    Patch(
        name="47728",
        pull=47728,
        about="blocks leave a window by the tokens whose outputs are known, not by those in flight",
        fits=ALL[: ALL.index("0.26.0")],
        landed="0.26.0",
        lay=laying(scheduler={"frees_settled": True}),
        cures="a window's blocks are freed before a step in flight refuses its drafts",
    ),
    Patch(
        name="32802",
        pull=32802,
        about="the look-ahead block is dropped once, not in every round",
        fits=("0.19.1",),
        lay=laying(
            lookup={
                "eagle_drop": "once",
                "eagle_margin": "not-recurrent",
                "margin_bound": "hit-limit",
            }
        ),
    ),
    Patch(
        name="51571",
        pull=51599,
        about="defect as reported: accepted counts move with their rows, and are read at old ones",
        fits=("0.27.1", "0.28.0"),
        lay=laying(runner={"counts_move_twice": True}),
    ),
    Patch(
        name="46281",
        pull=46281,
        about="recurrent groups look no further than attention with a drafter",
        fits=("0.24.0",),
        lay=laying(lookup={"eagle_margin": "not-recurrent"}),
        cures="with a drafter a recurrent group is granted a block more than it has",
    ),
    Patch(
        name="55601",
        pull=55601,
        about="the entry of a hit's state is computed in the state's own block size",
        fits=SEEDED,
        lay=laying(runner={"seeds_in_smallest_block": False}),
        cures="the entry of a state is computed in another block size than its own",
    ),
    Patch(
        name="39273",
        pull=39273,
        about="a step without drafts continues from the last accepted state",
        fits=ALL[: ALL.index("0.32.0")],
        landed="0.32.0",
        lay=laying(runner={"plain_path_reads_first": False, "plain_step_reads_first": False}),
        cures="a step without drafts reads a state from before the accepted ones",
    ),
    Patch(
        name="57278",
        pull=57278,
        about="in mode all a block is a multiple of the kernel's chunk of Mamba-2",
        fits=ALL[: ALL.index("0.32.0")],
        lay=laying(state={"blocks_of_whole_chunks": True}),
        cures="in mode all a block's state is taken from the end of a chunk that is not its own",
    ),
    Patch(
        name="prefills-lead",
        about="a prefill chunk of 1 + drafts tokens is sorted before requests without drafts",
        fits=ALL[ALL.index("0.29.0") :],
        lay=laying(runner={"reads_first_behind_prefill": True}),
    ),
    Patch(
        name="resumed-prefills",
        about="a resumed chunk is a prefill, however short",
        fits=ALL[: ALL.index("0.32.0")],
        lay=laying(runner={"short_resume_decodes": False}),
        cures="Mamba layers take a short resumed chunk for a decode: its first state is the "
        "running one",
    ),
    Patch(
        name="padded-first",
        about="the padded first token of a prompt is a decode that begins without a state",
        fits=ALL[ALL.index("0.31.0") :],
        lay=laying(runner={"padded_first_decodes": True}),
        cures="a prompt of one token is padded with drafts: its state includes refused ones",
    ),
    Patch(
        name="cuts-at-states",
        about="a chunk that begins inside a states' block stops at the block's end",
        fits=SINCE_0280,
        lay=laying(
            scheduler={"cuts_in_smallest_block": False, "passes_boundary_if_exporting": False}
        ),
        cures="a chunk passes the end of a states' block, whose id then stands for an older state",
    ),
    Patch(
        name="51565",
        pull=51565,
        about="a first chunk of one token is a prefill",
        fits=ALL[: ALL.index("0.31.0")],
        landed="0.31.0",
        lay=laying(runner={"first_token_reads_block": False}),
        cures="a first chunk of one token begins from what its block held (#51562)",
    ),
    Patch(
        name="43569",
        pull=43569,
        about="who is preempted or aborted takes back the ids of blocks that will not be written",
        fits=ALL,
        lay=laying(scheduler={"withdraws_unwritten": True}),
        cures="a state is hit that was withdrawn from its step and never written",
    ),
    Patch(
        name="54076",
        pull=54076,
        about="prefill chunks end on the retention grid, so that a state per interval exists",
        fits=SINCE_0280,
        lay=laying(scheduler={"stops_at_interval": True}),
    ),
    Patch(
        name="47491",
        pull=47491,
        about="a missing state leaves attention's hit as it is (the defect of #43090)",
        fits=ALL,
        lay=laying(lookup={"forgives_missing_state": True}),
    ),
    Patch(
        name="no-29387",
        about="defect put back: a state registered in this step can be hit in this step",
        fits=ALL,
        lay=laying(state={"same_step_guard": False}),
        pull=29387,
    ),
    Patch(
        name="no-39273",
        about="defect put back: a step without drafts continues from before the accepted ones",
        fits=SINCE_0320,
        lay=laying(runner={"plain_path_reads_first": True, "plain_step_reads_first": True}),
        pull=39273,
    ),
    Patch(
        name="no-46281",
        about="defect put back: with a drafter a recurrent group is granted a block too many",
        fits=SINCE_0280,
        lay=laying(lookup={"eagle_margin": "every-group"}),
        pull=46281,
    ),
    Patch(
        name="no-44409",
        about="defect put back: a group takes new blocks before the next one holds its hit",
        fits=SINCE_0240,
        lay=laying(scheduler={"holds_before_taking": False}),
        pull=33775,
    ),
    Patch(
        name="no-55601",
        about="defect put back: the entry of a hit's state is computed in the smallest block size",
        fits=tuple(each for each in ALL if each not in SEEDED),
        lay=laying(runner={"seeds_in_smallest_block": True}),
        pull=55600,
    ),
    Patch(
        name="unhashed-last",
        about="blocks without an id go to the tail of the queue, as until 0.22",
        fits=SINCE_0240,
        lay=laying(pool={"unhashed_first": "never"}),
    ),
    Patch(
        name="counts-loaded-state",
        about="a block is counted for the state that a store brings, not only for the next one",
        fits=SINCE_0240,
        lay=laying(state={"counts_loaded_state": True}),
    ),
    Patch(
        name="53084",
        about="defect as reported: a store saves the null block where no state is kept",
        fits=("0.27.1", "0.28.0"),
        lay=laying(state={"stores_null_block": True}),
        pull=53084,
    ),
    Patch(
        name="44243-agreed",
        about="with a store too, the hit is what all groups agree on (as since 0.28)",
        fits=("0.24.0",),
        lay=laying(scheduler={"store_hit": "whole-blocks"}),
        cures="with a store, attention's hit is taken where no state is (#48195)",
    ),
    Patch(
        name="skips-aborted",
        about="a chunk never runs whose request is aborted in time (as #56525 tells its failure)",
        fits=ALL,
        lay=laying(runner={"skips_aborted": True}),
    ),
    Patch(
        name="window-one-short",
        about="a hit needs one window block less (off by one, the classic of this arithmetic)",
        fits=ALL,
        lay=laying(lookup={"window_one_short": True}),
    ),
)
"""Named after the pull request or issue, or by cachesim."""


FAMILY: Final[Family[rules.Rules, VllmOptions]] = Family(
    name="vllm",
    about="vLLM: block pool, chained ids, one manager for attention, windows and states",
    repository="vllm-project/vllm",
    vocabulary="vllm gdn connector align block eagle dflash schedule retention",
    takes_images=True,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:Vllm",
    configuration=f"{__package__}.fields",
    releases=RELEASES,
    patches=PATCHES,
    options=VllmOptions,
    fields=(
        request_field(
            "cache_salt", "text", "separates this request's prefixes from those of other salts"
        ),
        request_field(
            "lora",
            "any",
            "the adapter to answer with: a table with 'name', and 'path' among --enable-lora; with "
            "'weights' among them instead, any path, at which they are now",
        ),
        request_field(
            "priority",
            "whole number",
            "under the policy `priority`: smaller numbers are served first",
            low=-(1 << 31),
            high=1 << 31,
        ),
        request_field(
            "failed_block",
            "whole number",
            "beside `store-async` and `nixl`: the block of this request's first load that does not "
            "arrive, from 0; of `nixl`, and beside windows, chunks or states, nothing of it does",
            low=0,
            high=MOST_BLOCKS,
        ),
    ),
    has_slots=False,
    plays_chunks=True,
    plays_compressed=True,
    groups_layers=True,
    by_device=by_device,
)
