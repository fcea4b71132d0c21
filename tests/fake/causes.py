"""Why the fake server reuses less."""

from cachesim.engines.causes import Cause, declared

FORGETFUL = Cause(
    id="forgetful",
    sentence="half of the {held} tokens held is forgotten",
    about="This server is made to lose tokens.",
    fields=("held",),
)

CAUSES = declared(globals())
