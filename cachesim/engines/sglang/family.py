"""SGLang's `Family`: the entry for tools."""

from functools import partial
from typing import Final

from cachesim.engines.family import Family, Patch, laying, tagged
from cachesim.engines.option import request_field
from cachesim.engines.sglang.options import SglangOptions, by_device
from cachesim.engines.sglang.rules import RULES_0522, RULES_0523, RULES_059, Rules

_release = partial(tagged, package="sglang")

RELEASES: Final = (
    _release("0.5.9", "2026-02-23", RULES_059, "a tree for each kind of model"),
    _release("0.5.22", "2026-10-15", RULES_0522, "the unified tree, matched after each insertion"),
    _release("0.5.23", "2026-10-30", RULES_0523, "one tree for all (UnifiedRadixCache)"),
)
"""Oldest first."""

ALL: Final = tuple(release.name for release in RELEASES)


PATCHES: Final[tuple[Patch[Rules], ...]] = (
    Patch(
        name="no-31643",
        pull=31643,
        about="defect put back: a match refreshes every state on its path, not only the used one",
        fits=("0.5.23",),
        lay=laying(tree={"uses_path_states": True}),
    ),
    Patch(
        name="no-37836",
        pull=31833,
        about="defect put back: tracked states of a batch are read at the first request's offset",
        fits=ALL,
        lay=laying(runner={"offset_of_first": True}),
    ),
    Patch(
        name="no-29368",
        pull=29330,
        about="defect put back: a chunk shorter than the grid starts from a blank state",
        fits=ALL,
        lay=laying(runner={"load_needs_tracking": True}),
    ),
    Patch(
        pull=24221,
        about="defect as reported: the state stored for a chunk is the one after the next chunk",
        fits=ALL,
        lay=laying(runner={"snapshot_after_next_chunk": True}),
    ),
    Patch(
        pull=24380,
        about="defect as reported: the reply leaves the key, and its tokens stay in the state",
        fits=ALL,
        lay=laying(tree={"key_without_reply": True}),
    ),
    Patch(
        name="no-16521",
        pull=16521,
        about="defect put back: a finished request is inserted without the tokens of its reply",
        fits=("0.5.9",),
        lay=laying(tree={"inserts_prompt_only": True}),
    ),
    Patch(
        pull=31486,
        about="defect as reported: window slots that were freed count as alive when inserted",
        fits=ALL,
        lay=laying(tree={"inserts_gone_windows": True}),
    ),
    Patch(
        pull=39830,
        about="defect as reported: the host gets whatever is in the slots when the copy is needed",
        fits=ALL,
        lay=laying(runner={"host_copy_late": True}),
    ),
    Patch(
        pull=27586,
        about="defect as reported: reviving a node's window frees slots by a stale map",
        fits=("0.5.23",),
        lay=laying(tree={"frees_by_a_stale_map": True}),
    ),
    Patch(
        name="no-34870",
        pull=34870,
        about="defect put back: with EAGLE windows are freed by tokens, and inserted by pairs",
        fits=("0.5.23",),
        lay=laying(
            tree={
                "windows_go_by_tokens": True,
                "keeps_whole_pages": False,
                "holds_what_it_inserts": False,
            }
        ),
    ),
    Patch(
        pull=33713,
        about="defect as reported: a state that the device evicts is evicted from the host as well",
        fits=("0.5.23",),
        lay=laying(tree={"state_copies_go_too": True}),
    ),
    Patch(
        name="no-40680",
        pull=40680,
        about="defect put back: with write_back an inner node's state is dropped without a copy",
        fits=("0.5.23",),
        lay=laying(tree={"copies_inner_states": False}),
    ),
    Patch(
        name="no-29204",
        pull=29204,
        about="defect put back: with write_back an inner node's window is dropped without a copy",
        fits=("0.5.23",),
        lay=laying(tree={"copies_inner_windows": False}),
    ),
    Patch(
        name="no-34808",
        pull=34808,
        about="defect put back: states are tracked on a finer grid than the tree's pages",
        fits=("0.5.22", "0.5.23"),
        lay=laying(tree={"tracks_by_chunks": True}),
    ),
    Patch(
        name="no-27291",
        pull=27291,
        about="defect put back: the storage is asked for the last page too, where no match ends",
        fits=("0.5.23",),
        lay=laying(tree={"fetches_last_page": True}),
    ),
    Patch(
        pull=31771,
        about="as proposed: of a long node on the host only the last window is loaded",
        fits=("0.5.23",),
        lay=laying(tree={"splits_long_windows": True}),
    ),
    Patch(
        pull=39541,
        about="as with encoder replay and drafts: a host without windows, and a match asks for one",
        fits=("0.5.22",),
        lay=laying(tree={"host_has_windows": False}),
    ),
    Patch(
        pull=39436,
        about="as proposed: the host has room for the states of all the tokens that it holds",
        fits=("0.5.23",),
        lay=laying(tree={"states_for_every_chunk": True}),
    ),
    Patch(
        name="shared-state",
        about="our own defect: a request runs on the tree's state instead of a copy of it",
        fits=ALL,
        lay=laying(runner={"shares_states": True}),
    ),
)
"""In the order in which tools list them."""


FAMILY: Final[Family[Rules, SglangOptions]] = Family(
    name="sglang",
    about="SGLang: a radix tree whose nodes may hold states and window slots",
    repository="sgl-project/sglang",
    vocabulary="sglang radix hicache himamba tombstoned tombstone bigram swa tier node nodes page",
    takes_images=True,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:Sglang",
    configuration=f"{__package__}.fields",
    releases=RELEASES,
    patches=PATCHES,
    options=SglangOptions,
    by_device=by_device,
    fields=(
        request_field(
            "extra_key", "text", "separates this request's prefixes from those of other keys"
        ),
        request_field(
            "lora",
            "any",
            "the adapter to answer with: a table with 'name', and 'path' among --lora-paths; with "
            "'weights' among them instead, any path, at which they are now",
        ),
        request_field(
            "session_params",
            "any",
            "the session of this request: a table with 'id', 'rid' of the request to continue, and "
            "'offset', 'replace', 'drop_previous_output'; 'streaming', 'close' of the session",
        ),
        request_field("rid", "text", "the name of this request in its session"),
        request_field(
            "routing_key", "text", "under the policy `routing-key`: requests of one key go together"
        ),
        request_field(
            "require_reasoning",
            "yes or no",
            "the reply begins with reasoning, as the chat template of a reasoning model asks; with "
            "--strip-thinking-cache nothing of such a reply is kept. By default so under a "
            "`reasoning_parser`",
        ),
        request_field(
            "priority",
            "whole number",
            "under priority scheduling, larger numbers are served first; under the eviction policy "
            "`priority`, nodes of lower priority are evicted first",
            low=-(1 << 31),
            high=1 << 31,
        ),
    ),
    has_slots=False,
    prompt_field="session_params",
)
