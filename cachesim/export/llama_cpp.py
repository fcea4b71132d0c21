"""A scenario as a pytest for `tools/server/tests/unit` of llama.cpp, or of ik_llama.cpp."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pprint import pformat
from typing import Any, Final

from cachesim.errors import ScenarioError
from cachesim.export.case import Case
from cachesim.export.python_text import name_of, span_lines, story, tokens_text
from cachesim.model.spec import ModelSpec
from cachesim.model.weights import draw
from cachesim.play.session import AS_TEXT
from cachesim.prove.hunt.report import STATED
from cachesim.prove.llama_cpp.calls import GREEDY, call_for
from cachesim.prove.llama_cpp.fitting import drafting, hurdle
from cachesim.prove.llama_cpp.gguf import model_keys
from cachesim.prove.llama_cpp.workload import in_one_call, resolved, vocabulary_of
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Prompt, Step
from cachesim.scenario.prompts import REPLY, piece_of
from cachesim.why.infer.settings import flag_of

ATTRIBUTES: Final[Mapping[str, str]] = {
    "parallel": "n_slots",
    "ctx_size": "n_ctx",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "cache_type_k": "ctk",
    "cache_type_v": "ctv",
    "flash_attn": "fa",
    "kv_unified": "kv_unified",
    "swa_full": "swa_full",
    "context_shift": "enable_ctx_shift",
    "cache_ram": "cache_ram",
    "embedding": "server_embeddings",
    "pooling": "pooling",
    "sleep_idle_seconds": "sleep_idle_seconds",
    "predict": "n_predict",
}
"""Flag -> the attribute of the suite's `ServerProcess`; other flags have none there."""

EXACT: Final[Mapping[str, Any]] = {
    "flash_attn": "off",
    "cache_type_k": "f32",
    "cache_type_v": "f32",
}
"""Flags without which rounding would hide a small error of an answer."""

MODEL: Final = '''\
def write_model(path):
    """A tiny {family} model with random weights: the cache decides the counts, not the weights."""
    rng = np.random.default_rng(0)
    tensors = {{
{top}
    }}
    for i, kind in enumerate({kinds}):
        for name, shape in {shapes}[kind].items():
            tensors[f"blk.{{i}}.{{name}}"] = shape
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{{b:02X}}>" for b in range(256))]
    tokens += [f"[{{i}}]" for i in range(len(tokens), {vocabulary})]
    keys = {{
{keys}
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [4] * (len(tokens) - 259),
        "tokenizer.ggml.add_bos_token": False,
    }}

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def typed(value):  # the type's number in the format, and the value
        if isinstance(value, list):
            number = {{int: 5, float: 6, str: 8}}[type(value[0])]
            items = b"".join(typed(v)[4:] for v in value)
            return struct.pack("<IIQ", 9, number, len(value)) + items
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        number, form = {{bool: (7, "?"), int: (4, "I"), float: (6, "f")}}[type(value)]
        return struct.pack(f"<I{{form}}", number, value)

    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)), b""
    for key, value in keys.items():
        head += text(key) + typed(value)
    for name, shape in tensors.items():
        weights = rng.normal(0, shape[-1] ** -0.5, shape)
        if "norm" in name or name.endswith("ssm_d"):
            weights = np.ones(shape)
        if name.endswith(("ssm_a", "ssm_dt.bias")):
            weights = np.full(shape, -0.5 if name.endswith("ssm_a") else -2.0)
        if name == "output.weight":
            weights[:259] = 0  # no special token is ever the likeliest
        head += text(name) + struct.pack(
            f"<I{{len(shape)}}QIQ", len(shape), *shape[::-1], 0, len(data))
        data += weights.astype("<f4").tobytes()
        data += bytes(-len(data) % 32)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)
'''

FIXTURE: Final = """\
@pytest.fixture
def server(tmp_path{patching}):
    write_model(tmp_path / "model.gguf")
    server = ServerProcess()
    server.model_hf_repo = server.model_hf_file = None
    server.model_file = str(tmp_path / "model.gguf")
    server.temperature = 0.0
{flags}    return server
"""

MORE_FLAGS: Final = """\
    # flags that ServerProcess has no attribute for
    start, flags = subprocess.Popen, [{words}]
    monkeypatch.setattr(subprocess, "Popen", lambda args, **how: start([*args, *flags], **how))
"""

COMPLETE: Final = """\
def complete(server, prompt, n_predict, **more):
    data = {"prompt": prompt, "n_predict": n_predict, "ignore_eos": True, "return_tokens": True}
    res = server.make_request("POST", "/completion", data={**data, **more})
    assert res.status_code == 200, res.body
    return res.body
"""

ONLY: Final = """\
def only(tokens):
    \"\"\"A grammar that allows this reply alone.\"\"\"
    return "root ::= " + " ".join(f"<[{token}]>" for token in tokens)
"""

LIKELIHOODS: Final = """\
def likelihoods(body):
    return [token["logprob"] for token in body["completion_probabilities"]]
"""

ANSWER: Final = """\
    server.stop()
    server.start()
    cold = complete(server, {prompt}, {predict}{more}, n_probs=1)
    assert warm["tokens"] == cold["tokens"]
    assert likelihoods(warm) == pytest.approx(likelihoods(cold), abs=0.01)
"""


def pytest_of(case: Case) -> str:
    """The test; an error names what llama.cpp's suite cannot be asked."""
    scenario = case.scenario
    if why := why_not(case):
        raise ScenarioError(f"{scenario.name}: {why}")
    lines = list(_steps(case))
    body = "\n".join(lines)
    options = dict(STATED) | dict(scenario.engine.options)
    options |= EXACT if case.law == "answer" else {}
    attributes = {k: v for k, v in options.items() if k in ATTRIBUTES}
    others = [
        word
        for name, value in options.items()
        if name not in ATTRIBUTES
        for word in (flag_of(case.family, name, value, case.profile.release) or "").split()
    ]
    flags = "".join(
        f"    server.{ATTRIBUTES[name]} = {_attribute(name, value)!r}\n"
        for name, value in attributes.items()
    )
    if any(step.file for step in scenario.step):
        flags += '    server.slot_save_path = f"{tmp_path}/"\n'
    if others:
        words = ", ".join(f'"{word}"' for word in others)
        flags += MORE_FLAGS.format(words=words)
    spans = span_lines(case, vocabulary_of(scenario).spans, " ".join(lines))
    imports = "import struct\n\nimport numpy as np\nimport pytest\nfrom utils import *\n"
    if spans:
        imports = f"import random\n{imports}"
    if "time.sleep" in body:
        imports = imports.replace("import struct\n", "import struct\nimport time\n")
    named = {"complete(": COMPLETE, "only(": ONLY, "likelihoods(": LIKELIHOODS}
    helpers = [helper for call, helper in named.items() if call in body]
    fixture = FIXTURE.format(patching=", monkeypatch" if others else "", flags=flags)
    test = f"def test_{case.slug}(server):\n{story(case, '    ')}\n    server.start()\n{body}\n"
    head, model = imports + (f"\n{spans}" if spans else ""), _model(spec_of(scenario.model))
    parts = [head, model, fixture, *helpers, test]
    return "\n\n".join(part.strip("\n") + "\n" for part in parts)


def why_not(case: Case) -> str:
    """The reason for which the suite cannot play a scenario up to the step; empty where it can."""
    scenario = case.scenario
    sent, after = scenario.step[: case.step + 1], scenario.step[case.step + 1 : case.step + 2]
    reasons: Sequence[tuple[bool, str]] = (
        (bool(scenario.models), "a router with several models needs several model files"),
        (drafting(scenario.engine.options), "its draft model proposes by weights of its own"),
        ("companion" in scenario.engine.options, "its MTP head proposes by weights of its own"),
        ("lora" in scenario.engine.options, "an adapter needs a file of its own"),
        (
            any(step.turns for step in sent) or any(step.with_previous for step in after),
            "a request arrives while another is computed: a race",
        ),
        (any(step.leaves for step in sent), "a client that disconnects is no request of the suite"),
        (any(step.messages for step in sent), "the chat template is the model's, not the test's"),
        (any(AS_TEXT in step.options for step in sent), "its prompts are texts of one tokenizer"),
        (
            any(
                step.options.get("endpoint", "completion") not in {"completion", "embedding"}
                for step in sent
            ),
            "it asks another endpoint than /completion",
        ),
    )
    hurdles = (hurdle(scenario, number) for number in range(len(sent)))
    return next((why for stands, why in reasons if stands), "") or next(filter(None, hurdles), "")


def _attribute(name: str, value: object) -> object:
    if name == "flash_attn" and isinstance(value, bool):
        return "on" if value else "off"
    return value


def _model(spec: ModelSpec) -> str:
    keys = {name: value.value for name, value in model_keys(spec).items()}
    family = keys["general.architecture"]
    shapes = {name: tuple(map(int, tensor.shape)) for name, tensor in draw(spec).items()}
    by_layer: dict[int, dict[str, tuple[int, ...]]] = {}
    top = {}
    for name, shape in shapes.items():
        found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if found is None:
            top[name] = shape
        else:
            by_layer.setdefault(int(found[1]), {})[found[2]] = shape
    layers = [by_layer[number] for number in sorted(by_layer)]
    kinds = list({repr(layer): layer for layer in layers}.values())
    numbers = [kinds.index(layer) for layer in layers]
    listed = pformat(kinds, indent=1, width=96, sort_dicts=False, compact=True)
    plain = {k: v for k, v in keys.items() if not k.startswith("tokenizer.")}
    text = MODEL.format(
        family=family,
        top="\n".join(f'        "{name}": {shape},' for name, shape in top.items()),
        kinds=numbers,
        shapes="LAYERS",
        vocabulary=spec.vocabulary,
        keys="\n".join(
            f'        "{name}": {_quoted(list(v) if isinstance(v, tuple) else v)},'
            for name, v in plain.items()
            if name not in {"general.name", "general.file_type"}
        ),
    )
    return f"LAYERS = {listed.replace(chr(39), chr(34))}\n\n\n{text}"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _steps(case: Case) -> Iterator[str]:
    """The requests up to the judged one, and what is asserted of it."""
    scenario, vocabulary = case.scenario, vocabulary_of(case.scenario)
    steps = []
    for number in range(case.step + 1):
        steps.append(resolved(scenario, number, vocabulary))
        vocabulary.replies[steps[-1].name] = vocabulary.tokens(case.run.steps[number].generated)
    quoted = {
        piece_of(word)[0].removesuffix(REPLY)
        for step in scenario.step
        for word in (step.prompt.split() if isinstance(step.prompt, str) else ())
        if piece_of(word)[0].endswith(REPLY)
    }
    for numbers in in_one_call(scenario):
        if case.step in numbers and len(numbers) > 1:
            raise ScenarioError(f"{scenario.name}: the step is one of several prompts of a call")
        group = [steps[number] for number in numbers]
        first = group[0]
        judged = case.step in numbers
        if first.do != "complete":
            yield from _action(case, numbers[0], first)
            continue
        body = dict(call_for(group)["body"])
        for key in (*GREEDY, "n_probs", "prompt", "n_predict", "content"):
            body.pop(key, None)
        forced = body.pop("grammar", None) and _tokens(
            case, scenario.step[numbers[0]].reply, steps[numbers[0]].reply
        )
        more = f", grammar=only({forced})" if forced else ""
        more += "".join(f", {key}={value!r}" for key, value in body.items())
        texts = [
            _tokens(case, scenario.step[number].prompt, steps[number].prompt) for number in numbers
        ]
        prompt = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        if first.options.get("endpoint") == "embedding":
            yield f'    server.make_request("POST", "/embedding", data={{"content": {prompt}}})'
            continue
        predict = first.predict if first.predict is not None else 1
        names = {step.name for step in group} & quoted
        if judged:
            yield from _judged(case, prompt, predict, more)
            return
        line = f"complete(server, {prompt}, {predict}{more})"
        yield f"    {name_of(first.name)}_reply = {line}" if names else f"    {line}"


def _action(case: Case, number: int, step: Step) -> Iterator[str]:
    match step.do:
        case "restart":
            if case.scenario.step[number].options:
                raise ScenarioError(f"{case.scenario.name}: a restart with other flags")
            yield "    server.stop()"
            yield "    server.start()"
        case "sleep":
            yield "    time.sleep(3)"
        case "set-lora":
            raise ScenarioError(f"{case.scenario.name}: an adapter needs a file of its own")
        case _:
            call = call_for([step])
            yield f'    res = server.make_request("POST", "{call["path"]}", data={call["body"]!r})'
            yield "    assert res.status_code == 200, res.body"


def _judged(case: Case, prompt: str, predict: int, more: str) -> Iterator[str]:
    if case.law == "answer":
        predict = max(predict, 1)
        yield f"    warm = complete(server, {prompt}, {predict}{more}, n_probs=1)"
        kept = "".join(re.findall(r", grammar=only\([^()]*\)", more))
        yield ANSWER.format(prompt=prompt, predict=predict, more=kept).rstrip("\n")
    elif case.law == "answered":
        yield f"    complete(server, {prompt}, {predict}{more})"
    else:
        sign = ">=" if case.law == "reuse" else "=="
        yield f"    body = complete(server, {prompt}, {predict}{more})"
        yield f'    assert body["timings"]["cache_n"] {sign} {case.tokens}'
        least = case.seen.size - case.tokens
        if case.seen.cached is not None and case.seen.processed is not None:
            sign = "<=" if case.law == "reuse" else "=="
            yield f'    assert body["timings"]["prompt_n"] {sign} {least}'


def _tokens(case: Case, written: Prompt, ids: Prompt) -> str:
    """Tokens by the names of their spans and replies, or the ids."""
    replies = {f"{s.name}{REPLY}": f'{name_of(s.name)}_reply["tokens"]' for s in case.run.steps}
    return tokens_text(written, ids if isinstance(ids, tuple) else (), replies)
