"""The encoder's outputs, for which the images of a request need room.

    prompt     text [ image a ] text [ image b ]
    step 1     |---------------------|              room for a, not for a and b: the chunk ends here
    step 2                           |---------|    a is in the keys, and its output may go

Follows `EncoderCacheManager` and `_try_schedule_encoder_inputs`. No encoder is computed.
"""

from collections.abc import Sequence

from cachesim.engines.images import Image, within
from cachesim.engines.vllm.request import Request
from cachesim.engines.vllm.rules import SchedulerRules


class EncoderCache:
    """Outputs by image, with the requests that need each (`EncoderCacheManager`)."""

    def __init__(self, size: int, lookahead: int, rules: SchedulerRules) -> None:
        self.size = self.unused = size
        self.rules = rules
        self.users: dict[str, set[tuple[int, int]]] = {}  # a request, and the image's place in it
        self.idle: dict[str, int] = {}  # without users, the first to go first (`freeable`)
        self.lookahead = lookahead  # tokens that a drafter reads beyond a chunk

    def fit(self, images: Sequence[Image]) -> None:
        """Grow to a longest image, which is a model's own limit (`compute_mm_encoder_budget`)."""
        more = max(max((image.count for image in images), default=0) - self.size, 0)
        self.size, self.unused = self.size + more, self.unused + more

    def take(
        self, request: Request, new: int, start: int, budget: int
    ) -> tuple[int, Sequence[Image]]:
        """The tokens of a chunk that the encoder allows, and the images that it has to encode."""
        chosen: dict[str, Image] = {}
        early = self.lookahead if self.rules.encoder_stops_ahead else 0
        for image in within(request.images, start, start + new + self.lookahead):
            # Encoded for another request, or for an earlier place in the prompt: no second time.
            if image.name in chosen or self._use(request, image):
                continue
            planned = sum(image.count for image in chosen.values())
            # An image is encoded whole, so the chunk ends before it.
            if image.count > budget - planned or not self._make_room(planned + image.count):
                return max(min(new, image.start - start - early), 0), tuple(chosen.values())
            # A drafter reads ahead of the chunk, and needs the output of an image there.
            if image.start < start + new + self.lookahead - early:
                chosen[image.name] = image
        return new, tuple(chosen.values())

    def _use(self, request: Request, image: Image) -> bool:
        """Add a user to an output that is there (`check_and_update_cache`)."""
        if image.name in self.users:
            self.idle.pop(image.name, None)
            self.users[image.name].add((request.id, image.start))
        return image.name in self.users

    def _make_room(self, wanted: int) -> bool:
        """Drop idle outputs until there is room; False if there is too little (`can_allocate`)."""
        # Outputs in use stay: their requests have not computed those tokens yet.
        if wanted > self.unused + sum(self.idle.values()):
            return False
        while wanted > self.unused:
            name = next(iter(self.idle))
            self.unused += self.idle.pop(name)
            del self.users[name]
        return True

    def allocate(self, request: Request, images: Sequence[Image]) -> None:
        """Keep the outputs of a chunk's images."""
        for image in images:
            self.users[image.name] = {(request.id, image.start)}
            self.unused -= image.count

    def free(self, request: Request, computed: int = 0) -> None:
        """Remove a request as a user, of images before a position; at 0, of all."""
        for image in request.images:
            users, place = self.users.get(image.name, set()), (request.id, image.start)
            if place in users and (computed or image.end) >= image.end:
                alone = self.rules.encoder_counts_places
                users -= {
                    # Until 0.30 a user is counted once, so its first place also frees the second.
                    user
                    for user in users
                    if user == place or (not alone and user[0] == place[0])
                }
                if not users:
                    self.idle[image.name] = image.count
