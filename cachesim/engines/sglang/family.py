"""SGLang's `Family`: the entry for tools."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.option import request_field
from cachesim.engines.sglang.options import SglangOptions, by_device
from cachesim.engines.sglang.releases import HISTORY, RELEASES
from cachesim.engines.sglang.rules import Rules

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
    patches=HISTORY.patches,
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
