"""Causes of wrong answers in Transformers: the line at fault, and what upstream's threads say.

A cause is assigned by the remedy that makes a result right, the class of the first layer that
differs, and the families whose source was read. The lines are those of 5.24.0, or of 5.23.0 where
5.24.0 has another result.
"""

from typing import Final, NamedTuple

from cachesim.prove.transformers import script_worker as remedies
from conformance.real.transformers.results import Cell


class Cause(NamedTuple):
    """The difference, and its layer."""

    remedy: str
    title: str
    source: str  # below transformers/
    why: str
    known: str = ""  # of upstream's threads; the search found none for the others
    operations: tuple[str, ...] = ()  # by their beginnings; none: all
    layer: str = ""  # part of the class of the first layer that differs
    families: tuple[str, ...] = ()  # whose source was read; none: all share the line
    shown: tuple[str, str] = ("", "")  # family and operation; none: shown by the cause before
    read: str = "5.24.0"  # the release of the source line

    def explains(self, cell: Cell) -> bool:
        """True if a wrong result has this cause."""
        remedies = cell.cause.split(", ")
        return (
            self.remedy in remedies
            and (not self.operations or cell.operation.startswith(self.operations))
            and self.layer in cell.place
            and (not self.families or cell.family in self.families)
        )


CAUSES: Final = (
    Cause(
        remedies.SHORTER,
        "`generate` feeds a prompt again whose tokens are all in the cache",
        "generation/utils.py:4323, _prefill: `input_ids.shape[1] - past_length`; sliced at :700",
        "A cache that holds as many tokens as the prompt gives a length of 0, and `[-0:]` is the "
        "whole prompt; with a longer cache the length is negative, and all but the first tokens "
        "are fed again. The documentation's prefilled cache has fewer tokens than the prompt; "
        "nothing refuses another one.",
        "#40906 left the case as a TODO, when it raised; #36151 is about positions.",
        shown=("llama", "generate-cached"),
    ),
    Cause(
        remedies.CALLS,
        "`generate` feeds a prompt again whose tokens are all in the cache",
        "generation/utils.py:4323, _prefill: `input_ids.shape[1] - past_length`; sliced at :700",
        "As with other families. `generate` gives positions from 0, RoBERTa-like models count from "
        "`padding_idx + 1`: other logits than calls of the model, without a cache too.",
        "#40906 left the case as a TODO, when it raised.",
        operations=("generate-cached", "generate-shorter"),
        families=(
            "camembert",
            "data2vec-text",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
        ),
    ),
    Cause(
        remedies.SINGLY,
        "Mamba-1 starts from a state of zeros in each call of several tokens",
        "models/mamba/modeling_mamba.py, selective scan: `ssm_state = torch.zeros(...)`",
        "The state of the cache is read for a single token only, so chunks, a further turn and "
        "speculative tokens forget what came before. A comment says that the kernel takes no "
        "initial state; no error and no documentation does.",
        "#46032 and #46741 repaired Mamba-2.",
        families=("mamba", "falcon_mamba", "jamba", "zamba"),
        shown=("jamba", "chunks"),
    ),
    Cause(
        remedies.CALLS,
        "`generate` with a cache of states alone feeds the whole conversation again",
        "generation/utils.py:4307, _prefill: `not all(cache.is_linear)`",
        "A cache of states has no length, so the prompt is never cut. The comment above allows the "
        "full sequence with a cache. With Mamba-2 the new tokens alone are right.",
        families=("mamba", "mamba2", "falcon_mamba"),
        shown=("mamba2", "generate-turn"),
    ),
    Cause(
        remedies.POSITIONS,
        "Bamba counts positions from 0 in each call",
        "models/bamba/modeling_bamba.py:973: `torch.arange(hidden_states.shape[1])`",
        "Without `position_ids` the cached length is not added, as other models do.",
        "#44330 took `cache_position` away.",
        families=("bamba",),
        shown=("bamba", "tokens"),
    ),
    Cause(
        remedies.REORDER,
        "`batch_select_indices` leaves DeepSeek-V4's compressor in the old order",
        "models/deepseek_v4/modeling_deepseek_v4.py:239, 301: `reorder_cache` alone",
        "The window's keys move, `compressed_kv`, `buffer_kv` and `buffer_gate` do not. `generate` "
        "does not call the method, and the cache refuses nothing.",
        families=("deepseek_v4",),
        shown=("deepseek_v4", "select"),
    ),
    Cause(
        remedies.REORDER,
        "`batch_select_indices` moves keys of hybrid layers, and not their states",
        "cache_utils.py:1301, 1340, LinearAttentionAnd...Layer: only `reorder_cache` is there",
        "`batch_select_indices` is inherited from DynamicLayer, which knows keys and values alone.",
        families=("falcon_h1", "zaya", "inkling_text", "inkling2_text", "inkling2_loop_text"),
        shown=("falcon_h1", "select"),
    ),
    Cause(
        remedies.REBUILT,
        "RecurrentGemma keeps its state in the module: two conversations mix",
        "models/recurrent_gemma/modeling_recurrent_gemma.py:338: `self.recurrent_states = ...`",
        "The cache that a caller gives holds the keys of the attention layers alone. A call with "
        "another cache continues the state of the module, one without a cache sets it to None, "
        "and a copy, a reset or a new order of the cache leaves it. Only tokens whose position is "
        "0 restart it, and not the convolution's columns. A conversation by itself is right.",
        families=("recurrent_gemma",),
        shown=("recurrent_gemma", "conversations"),
    ),
    Cause(
        remedies.SINGLY,
        "RecurrentGemma's convolution starts from zeros in each call of several tokens",
        "models/recurrent_gemma/modeling_recurrent_gemma.py:446: `self.conv_1d(x_branch)`",
        "The columns before are kept for a single token only; a call of several tokens is taken "
        "for a prefill. The recurrent state does continue. Nothing refuses such a call.",
        families=("recurrent_gemma",),
        shown=("recurrent_gemma", "chunks"),
    ),
    Cause(
        remedies.MOVED,
        "Beam search leaves RecurrentGemma's states in the old order: beams mix",
        "generation/utils.py:3838, 3845: `_reorder_cache`, which the model does not have",
        "Beam search calls the model's `_reorder_cache`, or else that of the cache, which holds "
        "the keys of the attention layers alone. A comment names RecurrentGemma among the models "
        "that have a `_reorder_cache`; the module's states stay. Beams that do not move are right.",
        "#46612 and #46819 are about caches of another name, not about states in a module.",
        families=("recurrent_gemma",),
        shown=("recurrent_gemma", "generate-beams"),
    ),
    Cause(
        remedies.LIMITED,
        "Zamba2 and Nemotron-H limit time steps of several tokens, and not those of a single one",
        "models/zamba2/modeling_zamba2.py:488, 552, 670, nemotron_h: 232, 296, 415: `dt_limit`",
        "`time_step_limit` is (`time_step_min`, inf), and only the scan gets it: where a time step "
        "is below 0.001, the state of a token fed by itself is another than that of a prompt. "
        "`time_step_min` is documented as a bound of `dt_proj.bias`, and `time_step_limit`, which "
        "Nemotron-H has and does not read, as the range of time steps.",
        "#48989 (open) would read it: its author measures the limit on a released checkpoint.",
        families=("zamba2", "nemotron_h"),
        shown=("zamba2", "tokens"),
    ),
    Cause(
        remedies.DYNAMIC,
        "GPT-Neo takes its causal mask from the end of a static cache's buffer",
        "models/gpt_neo/modeling_gpt_neo.py:116: `key_length - query_length :`",
        "`key_length` is the size of the buffer, not the number of tokens in it: local layers lose "
        "keys, global ones are right. A TODO of the model says that it needs a hybrid cache.",
        operations=("static", "generate-static"),
        families=("gpt_neo",),
        shown=("gpt_neo", "static"),
    ),
    Cause(
        remedies.DYNAMIC,
        "`crop` of a static cache leaves the keys of hybrid layers, and takes their states back",
        "cache_utils.py:1371, 1403, LinearAttentionAndStatic...Layer: no `crop`",
        "It is inherited from the states' class, which comes first, as is `is_croppable`: True for "
        "convolutions alone. The dynamic classes call both. The guide, Crop a cache, asks for a "
        "negative number, and for recording before the call whose tokens go; both are done here.",
        "#47950, which wrote that guide: a review says that hybrid static layers would crop the "
        "linear part alone.",
        operations=("static-crop-recorded",),
        families=("inkling_text", "inkling2_text", "inkling2_loop_text"),
        shown=("inkling2_text", "static-crop-recorded"),
    ),
    Cause(
        remedies.DYNAMIC,
        "Inkling counts new tokens twice in its query positions with a static cache",
        "models/inkling/modeling_inkling.py:233: `q_offset = cache.get_query_offset(...)`",
        "A static layer's length is a tensor, and its `update` adds to it in place "
        "(cache_utils.py:483). The offset is read before, used after; `+ 0` makes it right. A "
        "window's length is an int, and is right.",
        operations=("static",),
        families=("inkling_text",),
        shown=("inkling_text", "static"),
    ),
    Cause(
        remedies.DYNAMIC,
        "`batch_select_indices` of a quantised cache moves only tokens not yet quantised",
        "cache_utils.py:189, DynamicLayer.batch_select_indices, inherited by BaseQuantizedLayer",
        "`_quantized_keys` and `_quantized_values` stay as they are; `reorder_cache` moves both.",
        "#45510 (closed) would override it; #48700 is about `reorder_cache` and `reset`.",
        operations=("grouped-select", "quanto-select", "hqq-select"),
        shown=("llama", "grouped-select"),
    ),
    Cause(
        remedies.NEW_MASK,
        "Mamba-1 multiplies its input by the mask of the whole batch",
        "models/mamba/modeling_mamba.py:56: `hidden_states * attention_mask[:, :, None]`",
        "For a single new token the product has a column for each earlier one, also where the mask "
        "is 1 throughout: all of them enter the convolution's columns, so that the next token is "
        "wrong. `generate` gives no mask then; the documentation asks for the mask of all tokens "
        "in a loop of one's own. `create_recurrent_attention_mask`, which cuts it, is used by "
        "Mamba-2, Jamba and Zamba, and not here.",
        "#47087 (merged) is about padding masks of continued calls.",
        families=("mamba", "falcon_mamba"),
        shown=("mamba", "pad-tokens"),
    ),
    Cause(
        remedies.REBUILT,
        "A refused `crop` has cropped the layers before the one that refuses",
        "cache_utils.py:1873, Cache.crop: layers are cropped one after another",
        "The error says that nothing can be rolled back, and the cache is of two lengths: the next "
        "call raises where layers share a mask. A crash after a clear error, no silent answer; "
        "nothing promises that a refused crop changes nothing.",
        operations=("crop-refused",),
        shown=("laguna", "crop-refused"),
    ),
    Cause(
        remedies.REBUILT,
        "`crop` leaves DeepSeek-V4's compressed entries of the tokens that go",
        "models/deepseek_v4/modeling_deepseek_v4.py, DeepseekV4HCACache: no `crop`",
        "`is_croppable` is True, since only the window's layer is asked. The model's comment says "
        "that the compressor cannot go back, and `_is_stateful` keeps `generate` from it.",
        families=("deepseek_v4",),
        operations=("crop",),
        shown=("deepseek_v4", "crop-short"),
    ),
    Cause(
        remedies.REBUILT,
        "A second `crop` goes back further than a convolution's states were recorded",
        "cache_utils.py:1178, LinearAttentionCacheLayerMixin.crop",
        "The first crop keeps `conv_kernel_size` columns; the slice of a second one is shorter, "
        "and padded with zeros later. The docstrings say that recording lasts until a crop, which "
        "drops states, so that this is near a documented limit; nothing refuses a further crop, "
        "and `is_croppable` stays True.",
        families=("lfm2", "lfm2_moe"),
        operations=("crop-twice",),
        shown=("lfm2", "crop-twice"),
    ),
    Cause(
        remedies.REBUILT,
        "A second `crop` goes back further than a window's keys were recorded",
        "cache_utils.py:281, DynamicSlidingWindowLayer.crop",
        "The slice is shorter than the window, and `get_seq_length` counts as if it were whole.",
        layer=" DynamicSlidingWindow",
        operations=("crop-twice",),
    ),
    Cause(
        remedies.UNLIMITED,
        "A second `crop` goes back further than a window's keys were recorded",
        "cache_utils.py:281, DynamicSlidingWindowLayer.crop; models/doge/modeling_doge.py:355",
        "The slice is shorter than the window, and `get_seq_length` counts as if it were whole. "
        "Other models raise, since the mask is wider than the keys; Doge cuts the mask. A comment "
        "expects a crop after each call; nothing refuses a second one.",
        layer="SlidingWindow",
        operations=("crop-twice",),
        families=("doge",),
        shown=("doge", "crop-twice"),
    ),
    Cause(
        remedies.REBUILT,
        "`reset` leaves MiniMax's linear states",
        "models/minimax/modeling_minimax.py:73, MiniMaxCache: no `reset`",
        "`Cache.reset` walks over `layers`; the states are in `linear_cache`.",
        families=("minimax",),
        operations=("reset", "static-reset", "fp8-reset", "grouped-reset"),
        shown=("minimax", "reset"),
    ),
    Cause(
        remedies.SELECTED,
        "`reorder_cache` leaves MiniMax's linear states: beams mix",
        "models/minimax/modeling_minimax.py:73, MiniMaxCache: no `reorder_cache`",
        "`batch_select_indices` is overridden, and beam search calls `reorder_cache`.",
        "#46612 and #46639 are about caches of another name, not about this class.",
        families=("minimax",),
        shown=("minimax", "generate-beams"),
    ),
    Cause(
        remedies.WHOLE_MASK,
        "GIT widens a padding mask by image tokens that the cache does not hold",
        "models/git/modeling_git.py:843: `extended_attention_mask = torch.ones(...)`",
        "Each call after the first is taken for one after an image, also after text alone; padding "
        "is looked for in the wrong columns. Without padding nothing changes.",
        families=("git",),
        shown=("git", "pad-tokens"),
    ),
    Cause(
        remedies.PER_CALL,
        "Continuous batching: DiffLlama's second attention overwrites the first one's values",
        "models/diffllama/modeling_diffllama.py:275, 285: `attention_interface` twice a layer",
        "Each call writes its half of the values to the same blocks. Right in 5.24.0.",
        families=("diffllama",),
        shown=("diffllama", "paged"),
        read="5.23.0",
    ),
    Cause(
        remedies.PER_CYCLE,
        "Continuous batching: HRM-Text's cycles write to the same layers",
        "integrations/eager_paged.py:43: `layer_idx=module.layer_idx`",
        "The model's own cache is given `layer_idx + cycle_offset`. 5.24.0 raises AttributeError.",
        families=("hrm_text",),
        shown=("hrm_text", "paged"),
        read="5.23.0",
    ),
    Cause(
        remedies.UNLIMITED,
        "Moshi's mask has no window, its cache has one",
        "models/moshi/modeling_moshi.py:778: `create_causal_mask`",
        "`sliding_window` is documented as the size of the window, and the cache keeps to it; the "
        "mask does not, so that a run without a cache attends to more, and the answer depends on "
        "how the prompt is divided into calls. By default the window is 3000, as is "
        "`max_position_embeddings`: only longer texts differ.",
        "#39251 (open) sees a test fail with the window's cache and pass with a dynamic one.",
        families=("moshi",),
        shown=("moshi", "tokens"),
    ),
    Cause(
        "attention of its own, which is not replaced by the paged one",
        "Continuous batching takes models whose attention it does not replace",
        "modeling_utils.py, set_attn_implementation: warns and continues",
        "It logs that the model does not support setting its attention implementation, and "
        "continuous batching, which calls it, does not check the result: no earlier token is seen. "
        "Warned of, and not refused. GPT-J and CodeGen are right in 5.24.0, others raise there.",
        shown=("bloom", "paged"),
        read="5.23.0",
    ),
    Cause(
        "positions of its own, which do not follow those of the packed prompts",
        "Continuous batching takes models that count positions themselves",
        "generation/continuous_batching/continuous_api.py: no check of the model",
        "A model without `position_ids` counts from 0 in each step, since it is given no cache, "
        "and on from one prompt to the next where they are packed into one row. 5.24.0 raises "
        "AttributeError, since they ask the paged cache for its length; also for twelve families "
        "that were right before.",
        shown=("bart", "paged"),
        read="5.23.0",
    ),
)

SHOWN: Final = {cause.shown: cause for cause in CAUSES if cause.shown[0]}
"""A cause by the family and operation that show it."""


def cause_of(cell: Cell) -> Cause | None:
    """The cause of a wrong result."""
    return next((cause for cause in CAUSES if cause.explains(cell)), None)
