"""A scenario as a pytest for `tests/v1/core` of vLLM's repository."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cachesim.engines.vllm.block_pool import GroupSpec
from cachesim.engines.vllm.options import DENSE
from cachesim.engines.vllm.server import Vllm
from cachesim.errors import ScenarioError
from cachesim.export.case import Case
from cachesim.export.python_text import span_lines, story, tokens_text
from cachesim.play.session import Session, groups_of
from cachesim.scenario.checks import DEFAULT_PREDICT, spec_of
from cachesim.scenario.labels import DERIVED
from cachesim.scenario.prompts import REPLY, Vocabulary
from cachesim.typed import of_kind

FILE: Final = '''\
import json
import random

import pytest
import torch
from vllm.config import (
{configs}
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
{specs}
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

pytestmark = pytest.mark.cpu_test

{spans}

LLAMA = {{
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": {vocabulary},
    "max_position_embeddings": {max_len},
    "torch_dtype": "float16",
}}


@pytest.fixture
def scheduler(tmp_path):
    init_none_hash(sha256)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model_config = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True)
    vllm_config = VllmConfig(
        model_config=model_config,
        scheduler_config=SchedulerConfig(
{scheduler}
        ),
        cache_config=CacheConfig(
{cache}
        ),
{drafter}    )
    vllm_config.cache_config.num_gpu_blocks = {blocks}
    kv_cache_config = KVCacheConfig(
        num_blocks={blocks},
        kv_cache_tensors=[],
        kv_cache_groups=[
{groups}
        ],
    )
    return Scheduler(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size={block},
{unit}    )


def make_request(request_id, prompt, max_tokens):
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher({hash_block}, sha256),
    )


def run(scheduler, *requests, reply=()):
    """Schedule until all requests are finished; return how many tokens each took from the cache.

    The model samples the reply, then zeros.
    """
    cached = {{}}
    for request in requests:
        scheduler.add_request(request)
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        assert output.total_num_scheduled_tokens > 0, "nothing can be scheduled"
        for new in output.scheduled_new_reqs:
            cached.setdefault(new.req_id, new.num_computed_tokens)
        sampled = []
        for request_id in output.num_scheduled_tokens:
            request, tokens = scheduler.requests[request_id], []
            if request.num_computed_tokens >= request.num_tokens:
                done = request.num_output_tokens
                tokens = [*reply[done : done + 1]] or [0]
            sampled.append(tokens)
        ids = list(output.num_scheduled_tokens)
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={{request_id: i for i, request_id in enumerate(ids)}},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={{}},
                pooler_output=[],
            ),
        )
    return cached


{mark}def test_{slug}(scheduler):
{why}
{body}
'''

EAGLE: Final = """\
        speculative_config=SpeculativeConfig(
            method="eagle",
            model=str(tmp_path),
            num_speculative_tokens={drafts},
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
        ),
"""
NGRAM: Final = """\
        speculative_config=SpeculativeConfig(
            method="ngram",
            num_speculative_tokens={drafts},
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
        ),
"""

PLAIN: Final = frozenset(
    {
        "block_size",
        "enable_mamba_shared_prefix_checkpoint",
        "enable_prefix_caching",
        "gdn_prefill_backend",
        "mamba_block_size",
        "mamba_cache_mode",
        "mamba_chunk_size",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "max_num_seqs",
        "num_gpu_blocks_override",
        "num_speculative_tokens",
        "prefix_cache_retention_interval",
        "prefix_match_unit",
        "speculative_method",
        "window_block_size",
    }
)
"""Flags that the scheduler's configuration or its groups of layers carry."""

KINDS: Final = {
    "full": "FullAttentionSpec",
    "window": "SlidingWindowSpec",
    "chunked": "ChunkedLocalAttentionSpec",
    "mamba": "MambaSpec",
}

NO_MODEL: Final = (
    "a wrong answer is made by the model runner; the suite's scheduler tests have no model"
)


def pytest_of(case: Case) -> str:
    """The test; an error names what a scheduler without a model cannot be asked."""
    if why := why_not(case):
        raise ScenarioError(f"{case.scenario.name}: {why}")
    scenario = case.scenario
    spec = spec_of(scenario.model)
    server = of_kind(Vllm, Session(scenario.without_promises(), case.profile).engine)
    groups = server.manager.groups
    if others := {group.kind for group in groups} - KINDS.keys():
        raise ScenarioError(
            f"{scenario.name}: groups of the kind {', '.join(others)} are made by the model's code"
        )
    limits, sizes, options = server.scheduler.limits, server.manager.sizes, server.options
    blocks, lines = options.num_gpu_blocks_override, list(_steps(case))
    unit = sizes.hash_block
    specs = sorted({"KVCacheConfig", "KVCacheGroupSpec", *(KINDS[group.kind] for group in groups)})
    drafter = ""
    if options.drafts:
        drafter = (EAGLE if options.use_eagle else NGRAM).format(drafts=options.drafts)
    configs = ["CacheConfig", "ModelConfig", "SchedulerConfig", "VllmConfig"]
    configs += ["ParallelConfig", "SpeculativeConfig"] if drafter else []
    text = FILE.format(
        configs="\n".join(f"    {name}," for name in sorted(configs)),
        specs="\n".join(f"    {name}," for name in specs),
        spans=span_lines(case, Vocabulary.of(scenario, spec).spans, " ".join(lines)),
        vocabulary=spec.vocabulary,
        max_len=limits.max_model_len,
        scheduler=_arguments(_scheduling(server)),
        cache=_arguments(_caching(case, groups)),
        drafter=drafter,
        blocks=blocks,
        groups="\n".join(_group(number, group) for number, group in enumerate(groups)),
        block=sizes.scheduler_block,
        unit=f"        hash_block_size={unit},\n" if unit != sizes.scheduler_block else "",
        hash_block=unit,
        mark=_mark(case),
        slug=case.slug,
        why=story(case, "    "),
        body="\n".join(f"    {line}" for line in lines),
    )
    if "rng = random" not in text:
        text = text.replace("import json\nimport random\n", "import json\n")
    return text


def why_not(case: Case) -> str:
    """The reason for which a scheduler alone cannot play a scenario; empty where it can."""
    scenario, sent = case.scenario, case.scenario.step[: case.step + 1]
    others = sorted(set(scenario.engine.options) - PLAIN - {"async_scheduling"})
    reasons: Sequence[tuple[bool, str]] = (
        (case.law == "answer" or case.seen.evidence == DERIVED, NO_MODEL),
        (any(step.messages for step in sent), "the server renders its chats"),
        (bool(scenario.models or scenario.images), "images and adapters are the processor's"),
        (any(step.turns for step in sent), "a request arrives while another is computed: a race"),
        (any(step.options for step in sent), "a request brings options"),
        (
            any(step.do not in {"complete", "slot-erase"} for step in sent),
            "a step is neither a request nor a reset of the cache",
        ),
        ("connector" in scenario.engine.options, "it needs a connector to a store"),
        (bool(others), f"{', '.join(others)}: a flag of the server"),
    )
    return next((why for stands, why in reasons if stands), "")


def _arguments(values: Mapping[str, Any]) -> str:
    return "\n".join(f"            {name}={_quoted(value)}," for name, value in values.items())


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _scheduling(server: Vllm) -> dict[str, Any]:
    options = server.options
    given: dict[str, Any] = {
        "max_num_seqs": min(options.max_num_seqs, options.max_num_batched_tokens),
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_model_len": options.max_model_len,
        "is_encoder_decoder": False,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
    }
    if options.max_num_scheduled_tokens:
        given["max_num_scheduled_tokens"] = options.max_num_scheduled_tokens
    return given


def _caching(case: Case, groups: Sequence[GroupSpec]) -> dict[str, Any]:
    states = [group for group in groups if group.kind == "mamba"]
    given: dict[str, Any] = {
        "block_size": min(group.block for group in groups),
        "enable_prefix_caching": True,
    }
    if states:
        given |= {"mamba_cache_mode": states[0].mode, "mamba_block_size": states[0].block}
    retention = case.scenario.engine.options.get("prefix_cache_retention_interval")
    if retention is not None:  # without an interval every state is kept
        dense = retention == DENSE
        given["prefix_cache_retention_interval"] = None if dense else retention
    return given


def _group(number: int, group: GroupSpec) -> str:
    size = {"block_size": group.block}
    more: dict[str, Any]
    if group.kind == "mamba":
        more = {"mamba_cache_mode": group.mode}
        if group.speculative_blocks:
            more["num_speculative_blocks"] = group.speculative_blocks
        if group.checkpoint_alignment:
            more |= {
                "num_prefill_checkpoint_blocks": 1,
                "prefill_checkpoint_alignment": group.checkpoint_alignment,
            }
        layout = ["shapes=((1, 1),)", "dtypes=(torch.float32,)"]
    else:
        more = {"sliding_window": group.window} if group.kind == "window" else {}
        more |= {"attention_chunk_size": group.chunk} if group.kind == "chunked" else {}
        layout = ["num_kv_heads=1", "head_size=1", "dtype=torch.float32"]
    written = [f"{name}={_quoted(value)}" for name, value in (size | more).items()]
    lines = "\n".join(f"                    {each}," for each in [*written, *layout])
    mark = "                is_eagle_group=True,\n" if group.eagle else ""
    return (
        f'            KVCacheGroupSpec(\n                ["layer.{number}"],\n'
        f"                {KINDS[group.kind]}(\n{lines}\n                ),\n{mark}            ),"
    )


def _mark(case: Case) -> str:
    """A test of what no release keeps yet must not break the suite, and must fail to do so."""
    if not case.broken or case.keeping() is not None:
        return ""
    return f'@pytest.mark.xfail(strict=True, reason="{case.issue or "an open defect"}")\n'


def _steps(case: Case) -> Iterator[str]:
    scenario = case.scenario
    texts: dict[str, str] = {}
    for group in groups_of(scenario):
        sent = []
        for number in group:
            step, seen = scenario.step[number], case.run.steps[number]
            if step.do == "slot-erase":
                yield "assert scheduler.reset_prefix_cache()"
                continue
            prompt = tokens_text(step.prompt, step.ids, texts)
            count = max(1, step.predict if step.predict is not None else DEFAULT_PREDICT)
            sent.append(f'make_request("{seen.name}", {prompt}, max_tokens={count})')
            texts[f"{seen.name}{REPLY}"] = str(list(map(int, seen.generated)))
        if len(sent) == 1:
            call = f"run(scheduler, {sent[0]}{_quoted_reply(case, group)})"
            lines = [call]
        elif sent:
            lines = ["run(", "    scheduler,", *(f"    {each}," for each in sent), ")"]
        else:
            continue
        if case.step in group and case.law != "answered":
            lines[0] = f"cached = {lines[0]}"
        yield from lines
        if case.step in group:
            break
    if case.law != "answered":
        sign = ">=" if case.law == "reuse" else "=="
        yield f'assert cached["{case.seen.name}"] {sign} {case.tokens}'


def _quoted_reply(case: Case, group: Sequence[int]) -> str:
    """The reply as an argument, where a later prompt repeats it."""
    name = case.run.steps[group[0]].name
    later = case.scenario.step[group[0] + 1 : case.step + 1]
    if not any(f"{name}{REPLY}" in str(step.prompt) for step in later):
        return ""
    return f", reply={list(map(int, case.run.steps[group[0]].generated))}"
