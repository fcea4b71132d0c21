"""Inside mlx-lm's environment: workloads on a scheduler and prefix cache of vllm-mlx's kin.

One line of JSON in, one line out: a model and requests go in, what each was given from the cache
and what the cache then holds come out. The folder of the unpacked wheel is the program's argument.
The replies are forced by logits processors; the limits of the cache are a workload's, all other
settings those of the wheel's own `serve`. The statements on which they depend are those of its
`serve_command`; the others, which download a model and open a port, are left out.
"""

import argparse
import ast
import importlib
import inspect
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from cachesim.lab.real.mlx_lm.server_models import Folders
from cachesim.lab.real.mlx_lm.server_worker import namespace
from cachesim.lab.real.worker_side import Json, Real, own_output

CONFIG = "SchedulerConfig"

ABSENT = ("jsonschema", "websockets")
"""Requirements of Rapid-MLX for calls of tools and for `rapid-mlx share`, which do not run here."""


def arguments_of(folder: str, workload: Json) -> list[str]:
    """The command line of a workload, after `vllm-mlx` or `rapid-mlx`."""
    if "serve" not in workload:
        return ["serve", folder, "--continuous-batching"]
    entries = workload["serve"]["entries"]
    more = [] if entries is None else ["--hybrid-cache-entries", str(entries)]
    return ["serve", folder, *more]


def config_of(arguments: Sequence[str], alias: str | None = None) -> tuple[Json, Real]:
    """The parsed flags, and the settings of the scheduler that `serve_command` starts with them.

    `alias`: a model that Rapid-MLX lists, by which it knows a cache that cannot be cut.
    """
    line: Real = importlib.import_module("vllm_mlx.cli")
    sys.argv = [line.__name__, *arguments]  # read for flags that a user typed
    for package in ABSENT:
        sys.modules.setdefault(package, MagicMock())
    parsed = vars(namespace(line, list(arguments)))
    named = argparse.Namespace(**parsed, _original_alias=alias)
    function: Any = ast.parse(inspect.getsource(line.serve_command)).body[0]
    call = next(
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Call) and _name(each.func) == CONFIG
    )
    needed, kept = _names(call, ast.Load), list[ast.stmt]()
    for statement in reversed(_before(function.body, call)):
        if _names(statement, ast.Store) & needed:
            kept.insert(0, statement)
            needed |= _names(statement, ast.Load)
    function.body = [*kept, ast.Return(call)]
    made = ast.fix_missing_locations(ast.Module([function], []))
    names = dict(vars(line))
    exec(compile(made, str(line.__file__), "exec"), names)  # noqa: S102 - the wheel's own source
    return parsed, names[function.name](named)


def _before(block: Sequence[ast.stmt], call: ast.Call) -> list[ast.stmt]:
    at = next(n for n, each in enumerate(block) if any(part is call for part in ast.walk(each)))
    blocks = (getattr(block[at], field, None) or [] for field in ("body", "orelse"))
    inner = next(
        (each for each in blocks if any(part is call for one in each for part in ast.walk(one))),
        None,
    )
    return [*block[:at], *([] if inner is None else _before(inner, call))]


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names and flags that a statement reads or binds; imports bind, too."""
    found = {
        _name(each)
        for each in ast.walk(node)
        if isinstance(each, (ast.Name, ast.Attribute)) and isinstance(each.ctx, context)
    }
    if context is ast.Store:
        imports = (ast.Import, ast.ImportFrom)
        taken = (each for each in ast.walk(node) if isinstance(each, imports))
        found |= {one.asname or one.name for each in taken for one in each.names}
    return found - {""}


def _name(node: ast.AST) -> str:
    """A name, or a flag as `args.flag`."""
    if isinstance(node, ast.Attribute):
        return f"args.{node.attr}" if _name(node.value) == "args" else ""
    return node.id if isinstance(node, ast.Name) else ""


def main() -> None:
    """Run workloads until the input ends."""
    answers = own_output()
    sys.path.append(sys.argv[-1])
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        folders = Folders(Path(place))
        for line in sys.stdin:
            wanted = json.loads(line)
            answer = settings(wanted["settings"], folders) if "settings" in wanted else None
            answers.write(json.dumps(answer or play(wanted, folders)) + "\n")


def play(workload: Json, folders: Folders) -> list[Json]:
    """Serve the requests of a workload, one after the other."""
    scheduler, tokenizer = started(workload, folders)
    chats = renderer(tokenizer, scheduler.config) if "serve" in workload else None
    return [
        served(scheduler, str(number), each if chats is None else rendered(chats, each))
        for number, each in enumerate(workload["requests"])
    ]


def started(workload: Json, folders: Folders) -> tuple[Real, Real]:
    """A workload's scheduler, and its tokenizer."""
    folder = folders.of(workload["model"], workload["template"], workload["vocabulary"])
    model, tokenizer = importlib.import_module("mlx_lm").load(str(folder))
    arguments = arguments_of(str(folder), workload)
    _, config = config_of(arguments, workload.get("serve", {}).get("model"))
    module: Real = importlib.import_module("vllm_mlx.scheduler")
    scheduler = module.Scheduler(model, tokenizer, config)
    stored = scheduler.memory_aware_cache
    stored._config = replace(stored._config, **workload["limits"])
    if "refresh" in workload:
        scheduler.SNAPSHOT_REFRESH_TOKENS = workload["refresh"]
    return scheduler, tokenizer


def settings(workload: Json, folders: Folders) -> list[Json]:
    """Flags and settings of `serve MODEL`, and of a workload."""
    folder = str(folders.of(workload["model"], workload["template"], workload["vocabulary"]))
    module: Real = importlib.import_module("vllm_mlx.scheduler")
    model, tokenizer = importlib.import_module("mlx_lm").load(folder)
    bare, config = config_of(["serve", folder])
    own, _ = config_of(arguments_of(folder, workload))
    default = module.Scheduler(model, tokenizer, config)
    return [
        described(flags, scheduler)
        for flags, scheduler in ((bare, default), (own, started(workload, folders)[0]))
    ]


def described(flags: Json, scheduler: Real) -> Json:
    """Flags, the scheduler's settings and those of its cache, as text."""
    found = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    for held in (scheduler.config, scheduler.memory_aware_cache._config):
        found |= vars(held)
    found["SNAPSHOT_REFRESH_TOKENS"] = getattr(scheduler, "SNAPSHOT_REFRESH_TOKENS", None)
    return {name: str(value) for name, value in found.items()}


def renderer(tokenizer: Real, config: Real) -> Real:
    """As much of Rapid-MLX's engine as renders chats, and finds what their next turns repeat."""
    engine: Real = importlib.import_module("vllm_mlx.engine.batched").BatchedEngine
    made = engine.__new__(engine)
    made._tokenizer, made._scheduler_config = tokenizer, config
    made._is_mllm, made._processor, made._model_name = False, None, "toy"
    return made


def rendered(chats: Real, wanted: Json) -> Json:
    """A request with its prompt, and where the next turn parts from it."""
    if "messages" not in wanted:
        return wanted
    messages = wanted["messages"]
    prompt = chats.tokenizer.encode(chats._apply_chat_template(messages))
    ends = chats._needs_prefix_boundary_snapshot()
    return wanted | {
        "prompt": prompt,
        "prefix_boundary": chats._compute_prefix_boundary(messages) if ends else 0,
    }


def served(scheduler: Real, name: str, wanted: Json) -> Json:
    """Cached tokens of a request, and the keys and lengths that are stored after it."""
    asked: Real = importlib.import_module("vllm_mlx.request")
    forced, more = script(wanted), {}
    if "logits_processors" in asked.SamplingParams.__dataclass_fields__:
        more = {"logits_processors": [forced]}
    sampling = asked.SamplingParams(max_tokens=len(wanted["reply"]), temperature=0.0, **more)
    request = asked.Request(request_id=name, prompt=wanted["prompt"], sampling_params=sampling)
    request.suppressed_tokens_logits_processor = forced  # Rapid-MLX's place for one
    request.prefix_boundary = wanted.get("prefix_boundary", 0)
    scheduler.add_request(request)
    kind, found, given = request.cache_hit_type, request.cached_tokens, []
    before = scheduler.batch_generator
    fed = 0 if before is None else -before._prompt_tokens_counter
    while scheduler.has_requests():
        for output in scheduler.step().outputs:
            given += output.new_token_ids
    after = scheduler.batch_generator
    fed = after._prompt_tokens_counter + (fed if after is before else 0)
    entries = scheduler.memory_aware_cache._entries
    return {
        "kind": kind,
        "prompt": list(wanted["prompt"]),
        "found": found,
        "cached": len(wanted["prompt"]) - 1 - fed,  # the last one begins the reply
        "reply": [int(token) for token in given],
        "entries": [[list(key), offsets(entry.cache)] for key, entry in entries.items()],
    }


def script(wanted: Json) -> Real:
    """A logits processor that leaves one token of the reply after the other."""
    mx: Real = importlib.import_module("mlx.core")
    turn = iter(wanted["reply"])

    def processor(_: Real, logits: Real) -> Real:
        token = next(turn, 0)
        return mx.where(mx.arange(logits.shape[-1]) == token, logits, -mx.inf)

    return processor


def offsets(cache: Real) -> list[int]:
    """Tokens that each layer of a stored cache has; -1 for a state."""
    return [int(getattr(layer, "offset", -1)) for layer in cache]


if __name__ == "__main__":
    main()
