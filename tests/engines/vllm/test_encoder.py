"""Images wait for room in the encoder's cache."""

from cachesim.engines.images import Image
from cachesim.engines.vllm.encoder import EncoderCache
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.request import Prefixes, Request
from cachesim.units import Count, Pos, as_tokens


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
