"""The order of SGLang's lists of nodes by last use."""

import pytest

from cachesim.engines.sglang.node import LruList
from cachesim.errors import ContractError
from tests.engines.sglang.test_sglang_overlap import PROMPT, cached, send, server
from tests.fixtures import Patch


@pytest.mark.parametrize("model", ["swa", "hybrid"])
def test_a_list_that_misses_a_use_is_out_of_order(model: str, monkeypatch: Patch) -> None:
    engine = server("0.5.9", model=model)
    cached(engine, send(engine, PROMPT))
    cached(engine, send(engine, [7, *PROMPT]))
    monkeypatch.setattr(LruList, "use", lambda *_: None)
    monkeypatch.setattr(LruList, "use_path", lambda *_: None)

    with pytest.raises(ContractError, match="is not in the order of last use"):
        cached(engine, send(engine, [*PROMPT, 8]))
