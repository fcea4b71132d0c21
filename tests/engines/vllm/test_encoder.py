"""Images wait for room in the encoder's cache."""

from contextlib import nullcontext

import pytest

from cachesim.engines.images import Image
from cachesim.engines.vllm.encoder import EncoderCache
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.observe import check_encoder
from cachesim.engines.vllm.request import Prefixes, Request
from cachesim.errors import ContractError
from cachesim.units import Count, Pos, as_tokens
from conformance.real.vllm.playing import play


def test_an_image_waits_for_room_in_the_encoder_and_idle_ones_make_it() -> None:
    rules = FAMILY.release("0.33.0").rules.scheduler
    cache, prefixes = EncoderCache(10, 0, rules), Prefixes(4)
    a, b = Image("a", Pos(0), Count(6)), Image("b", Pos(8), Count(6))
    request = Request.make(0, prefixes, as_tokens([*range(16)]), max_tokens=1, images=(a, b))

    new, images = cache.take(request, 16, 0, 10)
    assert (8, (a,)) == (new, images)  # the chunk ends where b begins
    cache.allocate(request, images)
    assert 0 == cache.take(request, 8, 8, 10)[0]  # a is still needed

    cache.free(request, 8)
    assert (8, (b,)) == cache.take(request, 8, 8, 10)
    assert (0, ()) == cache.take(request, 8, 8, 5)  # more than the step's encoder tokens


def test_an_image_that_stands_twice_is_kept_to_its_last_place_since_0_31() -> None:
    for release, kept in (("0.28.0", False), ("0.31.0", True)):
        cache = EncoderCache(10, 0, FAMILY.release(release).rules.scheduler)
        twice = (Image("a", Pos(0), Count(4)), Image("a", Pos(6), Count(4)))
        request = Request.make(0, Prefixes(4), as_tokens([*range(12)]), max_tokens=1, images=twice)
        cache.allocate(request, cache.take(request, 4, 0, 10)[1])
        cache.take(request, 8, 4, 10)
        cache.free(request, 4)
        assert kept == ("a" not in cache.idle), release


@pytest.mark.parametrize(
    ("release", "chunks"),
    [
        ("0.23.0", [[0, 12], [12, 24], [24, 35], [35, 47], [47, 54]]),
        ("0.24.0", None),
        ("0.32.0", None),
        ("0.33.0", [[0, 12], [12, 24], [24, 36], [36, 48], [48, 54]]),
    ],
)
def test_beside_eagle_an_image_right_behind_another_one_waits_endlessly_from_024_to_032(
    release: str, chunks: list[list[int]] | None
) -> None:
    """As the releases' own schedulers do: a chunk ends a token before the second image, where the
    first one is still needed.
    """
    groups = [{"kind": "full", "block": 4, "eagle": True}]
    config = {"groups": groups, "blocks": 40, "budget": 12, "max_seqs": 8}
    images = [["a", 26, 9], ["b", 36, 4]]
    request = {"prompt": "100-153", "generate": 1, "reply": "300", "images": images}
    workload = {"config": config | {"eagle": True, "drafts": 2}, "steps": [[request]]}

    [told] = play(workload, FAMILY.release(release).rules)

    if chunks is None:
        assert {"error": "stuck"} == told
    else:
        assert chunks == told["requests"][0]["chunks"]


@pytest.mark.parametrize(
    ("release", "late"), [("0.23.0", False), ("0.31.0", True), ("0.33.0", False)]
)
def test_an_output_that_a_drafter_may_still_read_breaks_no_law(release: str, late: bool) -> None:
    encoder = EncoderCache(10, 1, FAMILY.release(release).rules.scheduler)
    image = Image("a", Pos(0), Count(4))
    request = Request.make(0, Prefixes(4), as_tokens([*range(8)]), max_tokens=1, images=(image,))
    encoder.allocate(request, encoder.take(request, 4, 0, 10)[1])
    request.status, request.num_computed = "running", 4

    with nullcontext() if late else pytest.raises(ContractError, match="has an output for 0"):
        check_encoder(encoder, {0: request})
