"""`cachesim new`: a commented scenario to start from."""

import re
import sys
from pathlib import Path
from typing import Final

from cachesim.cli import AS_EXPECTED
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.scenario.format import NAME_SHAPE
from cachesim.scenario.readers import nearest
from cachesim.scenario.shipped import shipped_files

TEMPLATE: Final = """\
# A scenario: one story of requests to a server, and what is expected of it.
# Run it:      cachesim run {name}.toml
# Look closer: cachesim explain {name}.toml
# All keys:    cachesim schema
format = 1
name   = "{name}"
about  = "What happens, in a sentence."
class  = "lost-reuse"             # lost-reuse | stale-state | crash | limits | accounting

[source]                          # optional: where it was reported
issue    = "owner/repository#1"
upstream = "b9538"

[model]
preset = "hybrid"                 # cachesim list presets; or layers = ["ssm", "attention"]
seed   = 0                        # weights and spans come from it

[engine]
name     = "llama.cpp"            # cachesim list engines
profiles = ["b9538", "b11549"]    # releases, with patches: b9538+24143

[engine.options]                  # the server's flags under upstream's names
parallel = 1

[spans]                           # named runs of tokens; no two begin with the same token
system   = 200
question = 40
followup = 30

[[step]]
name    = "first"
prompt  = "system question"       # spans, "first.reply", or a list of token ids
predict = 8

[[step]]
name    = "second"
prompt  = "system question first.reply followup"
predict = 8

# [[expect]]                      # optional: what a profile should show, one item per step
# profile = "b9538"
# cached  = [0, 247]
# answer  = "same"
"""


def new_command(name: str, *, output: Path | None, source: str | None = None) -> int:
    """Print the template or a shipped scenario, or write it to a file that is not there yet."""
    if not re.fullmatch(NAME_SHAPE, name):
        msg = f"{name!r} cannot be a name: write letters, digits, '.', '_', '+' and '-'"
        raise InputError(msg)
    text = TEMPLATE.format(name=name) if source is None else copied(source, name)
    if output is None:
        sys.stdout.write(text)
    else:
        Output.at(output, "--output").write(text)
    return AS_EXPECTED


def copied(source: str, name: str) -> str:
    """A shipped scenario under another name."""
    files = {each.stem: each for each in shipped_files()}
    if source not in files:
        hint = nearest(source, [*files]) or "; `cachesim list` names those there are"
        msg = f"no shipped scenario is called {source!r}{hint}"
        raise InputError(msg)
    text = files[source].read_text(encoding="utf-8")
    return re.sub(r"^name( *)=.*$", rf'name\1= "{name}"', text, count=1, flags=re.MULTILINE)
