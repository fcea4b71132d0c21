"""A log in a browser: the report of `cachesim why` as JSON and as a page."""

import json
from io import BytesIO

from cachesim.errors import CachesimError
from cachesim.lab.logs.other_settings import add_other_settings
from cachesim.lab.logs.report import worst
from cachesim.lab.logs.whole import UserSettings, read_files, replays_of, why
from cachesim.packed import HEAD_BYTES, unpacked
from cachesim.report.html_document import page
from cachesim.report.why import why_report


def explained(name: str, data: bytes) -> str:
    """The report on a log: JSON as the command prints it, and the page, or the problems."""
    try:
        data = bytes(data)
        read = read_files([(name, unpacked(name, BytesIO(data), data[:HEAD_BYTES]))])
        replays = replays_of(read, UserSettings())
        found = why(read, replays)
        add_other_settings(found, replays)
    except CachesimError as error:
        return json.dumps({"problems": [str(error)]})
    parts = why_report(found, worst=worst(found["requests"], 3))
    return json.dumps(
        {"json": json.dumps(found, indent=1) + "\n", "html": page("cachesim why", *parts)}
    )
