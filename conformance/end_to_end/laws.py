"""The laws that every command line keeps, whatever its input."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from conformance.end_to_end.program import Ran
from tests.scenario.json_schema import errors

SCHEMAS: Final = Path(__file__).parents[2] / "docs" / "schema"

SUMS: Final = re.compile(
    r"([\d,]+) prompt tokens: ([\d,]+) reused, ([\d,]+) processed(?:,\s+([\d,]+) unknown)?"
)
"""The header of `why`: its parts are the whole."""

CERTAIN: Final = frozenset({"printed", "computed"})

CLEARED: Final = "seq-rm-refused"

ALL_UNKNOWN: Final = re.compile(r"\b[1-9][\d,]* prompt tokens: 0 reused, 0 processed")


def broken(ran: Ran, *, statuses: Collection[int], form: str) -> Iterator[str]:
    if ran.status == 3:
        yield f"status 3: {_last(ran.err)}"
    elif ran.status not in statuses:
        yield f"status {ran.status} instead of {' or '.join(map(str, sorted(statuses)))}"
    if "Traceback (most recent call last)" in ran.err + ran.out:
        yield "a traceback"
    if ran.status == 2 and not ran.err.strip():
        yield "status 2 without a word"
    if ran.status in {0, 1}:
        yield from broken_by_output(ran.out, form)


def broken_by_output(out: str, form: str) -> Iterator[str]:
    """Laws of the output."""
    if form in {"json", "jsonl"}:
        yield from _broken_json(out, lines=form == "jsonl")
        return
    for found in SUMS.findall(out):
        whole, *parts = (int(each.replace(",", "") or 0) for each in found)
        if whole != sum(parts):
            yield (
                f"{found[0]} prompt tokens are not {found[1]} reused and {found[2]} processed"
                + (f" and {found[3]} unknown" if found[3] else "")
            )
    if ALL_UNKNOWN.search(out):
        yield "unknown counts are printed as 0"


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if "bug in cachesim" not in line]
    return lines[0][:200] if lines else ""


def _broken_json(out: str, *, lines: bool) -> Iterator[str]:
    try:
        found = [json.loads(line) for line in (out.splitlines() if lines else [out])]
    except ValueError as error:
        yield f"no JSON: {error}"
        return
    for each in found:
        if not lines and isinstance(each, dict):
            name = ""
            if "runs" in each:
                name = "output"
            elif "agreement" in each and "servers" in each:
                name = "why"
            for problem in errors(each, schema(name))[:2] if name else ():
                yield f"not as docs/schema/{name}-1.json says: {problem}"
            if "totals" in each and isinstance(each.get("requests"), list):
                yield from broken_sums(each)


@cache
def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}-1.json").read_text())
    return found


def broken_sums(found: Mapping[str, Any]) -> Iterator[str]:
    """Sums over the requests of `why`, and parts of each request."""
    requests, totals = found["requests"], found["totals"]
    for request in requests:
        whole, cached, processed = (
            request[key] for key in ("prompt_tokens", "cached", "processed")
        )
        known = request.get("known", {})
        certain = {known.get(key) for key in ("prompt_tokens", "cached", "processed")}
        if None in (whole, cached, processed) or not certain <= CERTAIN:
            continue
        if not request["cancelled"] and whole != cached + processed:
            yield (
                f"request {request['number']}: {whole} prompt tokens are not {cached} cached and "
                f"{processed} processed"
            )
    for key in ("prompt_tokens", "cached", "processed"):
        numbers = [request[key] for request in requests]
        sums = {sum(number for number in numbers if number is not None)}
        sums.add(sum(counted(request, key) for request in requests))
        if totals.get(key) is not None and totals[key] not in sums:
            yield f"totals: {key} {totals[key]} is not the sum {max(sums)}"
        if requests and set(numbers) == {None} and totals.get(key) == 0:
            yield f"totals: {key} is 0 where every request's is unknown"
    whole, cached, processed = (totals.get(k) for k in ("prompt_tokens", "cached", "processed"))
    unknown = totals.get("unknown") or 0
    reported = totals.get("reported", {})
    if len({reported.get(key) for key in ("prompt_tokens", "cached", "processed")}) > 1:
        return  # each total is over other requests, and the text names how many
    if any(request["cancelled"] for request in requests) and reported:
        unknown = max(0, (whole or 0) - (cached or 0) - (processed or 0))
    if None not in (whole, cached, processed) and whole != cached + processed + unknown:
        yield (
            f"totals: {whole} prompt tokens are not {cached} cached, {processed} processed and "
            f"{unknown} unknown"
        )


def counted(request: Mapping[str, Any], key: str) -> int:
    """A request's part of a total: of a prompt of unknown length, the known parts."""
    if request.get("known", {}).get(key) in CERTAIN:
        return request[key] or 0
    return (request["cached"] or 0) + (request["processed"] or 0) if key == "prompt_tokens" else 0


def rules_of(request: Mapping[str, Any]) -> set[str]:
    """The causes of a request: a log's `why`, a recording's `losses`."""
    causes = request["losses"] if "losses" in request else request.get("why", ())
    return {cause["rule"] for cause in causes}


def broken_by_truth(found: Mapping[str, Any], pairs: Any) -> Iterator[str]:
    """Numbers of `why` marked printed or computed, against the server's answers."""
    for answer, request in pairs:
        if request is None:
            continue
        known = request.get("known", {})
        for key, real in (("prompt_tokens", answer.prompt), ("cached", answer.cached)):
            certain = known.get(key) in CERTAIN
            if key == "cached" and CLEARED in rules_of(request):
                continue  # the server reports what it had before it cleared its memory
            if real is not None and certain and request[key] != real:
                yield (
                    f"request {request['number']}: {key} {request[key]} ({known[key]}), and the "
                    f"server answered {real}"
                )
    if not found["requests"]:
        yield "no request"
