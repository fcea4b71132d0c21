"""Every flag that is listed for a commit is one that its parser takes."""

import re

import pytest

from cachesim.cli.flags import flags_of
from cachesim.engines.ik_llama.family import FAMILY
from cachesim.why.infer.settings import flag_of

BOTH = """-np --parallel -c --ctx-size -b --batch-size -ub --ubatch-size --ctx-checkpoints
--ctx-checkpoints-interval --ctx-checkpoints-tolerance -sps --slot-prompt-similarity -cram
--cache-ram -crs --cache-ram-similarity -cram-n-min --cache-ram-n-min --reasoning-tokens
--context-shift --no-context-shift --chat-template"""
TAKEN = {
    "d2da6da05": f"{BOTH} -mtp --draft --draft-max --draft-min --draft-p-min --recurrent-ckpt-mode",
    "8337e4cd3": f"""{BOTH} --spec-ckpt-mode --spec-type --swa-compress -ctx-ckpt -ctx-ckpt-i
    -ctx-ckpt-t -ctx-ckpt-e --ctx-checkpoints-eviction""",
}
"""By commit: what `gpt_params_find_arg` takes without a warning, of what a cache depends on."""


@pytest.mark.parametrize("release", TAKEN)
def test_every_listed_flag_is_one_that_the_parser_takes(release: str) -> None:
    listed = {word for each in flags_of(FAMILY, release) for word in each.upstream.split(", ")}
    names = {re.split(r"[ :]", each)[0] for each in listed} - {""}

    assert set() == names - set(TAKEN[release].split())


@pytest.mark.parametrize(
    ("release", "name", "value", "line"),
    [
        ("d2da6da05", "companion", "attn", "-mtp"),
        ("d2da6da05", "draft_max", 3, "--draft-max 3"),
        ("d2da6da05", "recurrent_ckpt_mode", "cpu", "--recurrent-ckpt-mode cpu"),
        ("8337e4cd3", "companion", "attn", "--spec-type mtp"),
        ("8337e4cd3", "companion", "window", "--spec-type mtp --swa-compress"),
        ("8337e4cd3", "companion", "strict_tail", ""),  # no server has it
        ("8337e4cd3", "draft_max", 3, "--spec-type mtp:n_max=3"),
        ("8337e4cd3", "companion_window", 128, ""),  # the model's, not a flag
        ("8337e4cd3", "recurrent_ckpt_mode", "cpu", "--spec-ckpt-mode cpu"),
        ("8337e4cd3", "context_shift", True, "--context-shift on"),
        ("8337e4cd3", "context_shift", False, "--no-context-shift"),
    ],
)
def test_a_value_is_spelled_as_the_commit_reads_it(
    release: str, name: str, value: object, line: str
) -> None:
    assert line == flag_of(FAMILY, name, value, release)
