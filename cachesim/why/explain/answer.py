"""The answer of `cachesim why` in three sentences: how many tokens, who can change it, how sure.

    prompt      [ what the server had held ............ )[ as before, past a change )[ new ... )
    cached      [ reused ........ )
    again                          [ prefilled again ... )
    changed                                              [ prefilled for it ...... )

The words mean the same of a log and of a recording. A log proves less: what a prompt shares with a
slot or an entry that the server compared, and how many tokens at most follow a change.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any, Final

from cachesim.engines.words import counted, numbered
from cachesim.why.explain.wrong import avoided_by

CLEARLY: Final = 0.01
"""Share of the prefilled tokens from which a flag or a release is worth a sentence."""

CLEARLY_AT_MOST: Final = 0.1
"""The same of tokens that follow a change: how many the server had held, a log only bounds."""


def answer_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as JSON: who could spare how many tokens, and the three sentences."""
    by: Counter[str] = Counter()
    for who, lost in _losses(found):
        by[who] += lost
    ranked = dict(sorted(by.items(), key=lambda item: -item[1]))
    return {"by": ranked, "says": [_tokens(found), _change(found, ranked), _sure(found, ranked)]}


def _losses(found: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Who can change a loss, and its tokens: each request's of a log, each cause's of a recording.

    Where no answer of a recording reports cached tokens, all that follow a change.
    """
    if "log" in found:
        for request in found["requests"]:
            if (lost := _lost(request)) and (who := _who(request, found)):
                yield who, lost
        return
    for cause in found["causes"]:
        if lost := cause["tokens"] or (cause["tokens"] is None and cause["tokens_after"]):
            yield cause["who"], lost


def _lost(request: Mapping[str, Any]) -> int:
    return int(request["again"] or 0) + int(request["again_changed"])


def _who(request: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """Who can change a request's loss; a flag only where one helps, or none was tried."""
    who: str | None = request["by"]
    if who == "flag" and found.get("tuned") and not _flag(found):
        return "either" if request["turn"] == "other" else "design"
    return who


def _whose(found: Mapping[str, Any]) -> str:
    return "log" if "log" in found else "recording"


def _tokens(found: Mapping[str, Any]) -> str:
    totals = found["totals"]
    prefilled, again = totals["processed"], totals["again"]
    changed = totals["again_changed"] or 0
    if prefilled is None and (after := totals.get("after_partings")):
        return (
            f"About {after:,} tokens follow a change in the prompt; how many were prefilled again, "
            "no answer reports."
        )
    if prefilled is None:
        return f"How many tokens were prefilled is unknown: the {_whose(found)} does not say it."
    whole = counted(prefilled, "prefilled token")
    if any(request["known"]["processed"] == "bounded" for request in found["requests"]):
        whole += " or more"
    if again is None:
        return f"The {_whose(found)} does not say how many of the {whole} the server had held."
    most, unknown = max(again, totals.get("again_at_most") or 0), totals.get("again_unknown") or 0
    if unknown and unknown == prefilled:
        return f"The log does not say how many of the {whole} the server had held."
    untold = f" Of {unknown:,} more the log does not say it." if unknown else ""
    if not most and not changed:
        if unknown:
            new = f"{prefilled - unknown:,} of the {whole} were new to the server"
            return f"{new}; of the others the log does not say it."
        return f"None of the {whole} were prefilled again: all were new to the server."
    share = f"{whole} ({_share(again, prefilled)})" if again else whole
    number = f"{again:,}" if most == again else f"{again:,} to {most:,}"
    words = f"{number} of the {share} were prefilled again although the server had held them"
    if most and not again:
        words = f"Up to {most:,} of the {whole} may have been prefilled again"
    if not changed:
        return f"{words}.{untold}"
    if "log" not in found:  # its sum has both
        which = "all" if changed == again else f"{changed:,}"
        words = f"{number} of the {share} were prefilled again"
        return f"{words}, {which} of them because the client had changed the prompt before them."
    if not most:
        share = f"{whole} ({_share(changed, prefilled)})"
        words, more = f"Up to {changed:,} of the {share} were prefilled again", ""
    else:
        more = f"; up to {changed:,} more"
    return f"{words}{more} after a change in the prompt.{untold}"


def _share(tokens: int, whole: int) -> str:
    percent = 100 * tokens / whole
    return f"{percent:.0f} %" if percent >= 1 else "less than 1 %"


DO: Final = "Have the client"
"""How advice begins that a client can follow."""

LEADS: Final[Mapping[str, str]] = {
    "client": "The client can change it{part}:",
    "either": "The client can change it{part}, if it continues one conversation:",
    "flag": "A flag can change it{part}:",
    "untried": "A flag may change it{part}:",
    "defect": "Another release can change it{part}:",
    "design": "Nobody can change it{part}, as the server is designed so:",
    "unknown": "Who can change it{part} is unknown:",
}


def _change(found: Mapping[str, Any], ranked: Mapping[str, int]) -> str:
    """Who can change it, and the one thing to do."""
    flag, totals = _flag(found), found["totals"]
    whole, prefilled = sum(ranked.values()), totals["processed"]
    wrong = avoided_by(found.get("wrong", ()))
    if not ranked:
        if _is_open(found):
            return f"Who can change it is unknown{_missing(found)}."
        if flag:
            return f"A flag saves tokens all the same: {flag}."
        return f"No token can be saved, but {wrong}." if wrong else "There is nothing to change."
    held = max(totals["again"] or 0, totals.get("again_at_most") or 0)
    if not flag and held < CLEARLY * (prefilled or 0) and whole < CLEARLY_AT_MOST * prefilled:
        return f"That is too little to change anything for it{wrong and f', but {wrong}'}."
    who, tokens = next(iter(ranked.items()))
    part = "" if tokens == whole else f", for {tokens:,} of {whole:,} tokens"
    lead = LEADS["untried" if who == "flag" and not flag else who].format(part=part)
    if who == "flag" and flag:
        return f"{lead} {flag}."
    if who == "defect" and (release := _release(found)):
        return f"{lead} {release}."
    also = f" A flag helps too: {flag}." if flag else ""
    do = _to_do(found, who)
    begins = do[0].lower() if do[1:2].islower() or do[1:2] == " " else do[0]
    return f"{lead} {begins}{do[1:]}{also}"


def _is_open(found: Mapping[str, Any]) -> bool:
    """True if it is unknown whether tokens were prefilled again, where no loss is known."""
    totals = found["totals"]
    may_be = totals.get("again_unknown") or totals.get("again_at_most")
    return None in (totals["again"], totals["processed"]) or bool(may_be and not _flag(found))


def _missing(found: Mapping[str, Any]) -> str:
    """What a log lacks, or the command that says it."""
    if cut := _is_cut(found):
        return f", as the log is cut: it lacks {cut}"
    files = found["log" if "log" in found else "dump"]["sources"]
    return f": `cachesim why --doctor {' '.join(map(quote, files))}` names what is missing"


def _is_cut(found: Mapping[str, Any]) -> str:
    """What a cut log lacks; empty for a whole one."""
    return next((server["cut"] for server in found.get("servers", ()) if server["cut"]), "")


def _to_do(found: Mapping[str, Any], who: str) -> str:
    """The advice on the largest cause that this one can change."""
    if "log" not in found:
        cause = next(cause for cause in found["causes"] if cause["who"] == who)
        return f"{cause['example']}. {cause['advice']}".rstrip()
    requests = [r for r in found["requests"] if _lost(r) and _who(r, found) == who]
    departing = [request for request in requests if request["turn"] in {"changed", "other"}]
    if who in {"client", "either"} and departing:
        worst = max(departing, key=_lost)
        others = f", the worst of {len(departing)}," if len(departing) > 1 else ""
        return (
            f"have it send its history unchanged. Request {worst['number']}{others} departs from "
            f"it at token {worst['common']:,} of {worst['held']:,}; `cachesim record --help` says "
            "how to see the text there."
        )
    rules: Counter[str] = Counter()
    for request in requests:
        rules[request["because"]] += _lost(request)
    rule = max(rules, key=lambda rule: rules[rule])
    (cause,) = (cause for cause in found["causes"] if cause["cause"] == rule)
    does, *_ = cures = sorted(cause["cure"].split(". "), key=lambda part: not part.startswith(DO))
    if who == "client" and does.startswith(DO) and len(cures) > 1:
        lost = max(requests, key=_lost)
        return (
            f"have it{does.removeprefix(DO).rstrip('.')}, because the server has no state where "
            f"prompts part, such as at token {lost['common']:,} of request {lost['number']}."
        )
    return " ".join(filter(None, (cause["tried_says"], cause["cure"])))


def _flag(found: Mapping[str, Any]) -> str:
    """The recommended flags with the tokens that they save in the replay; empty without any."""
    tuned = found.get("tuned")
    if not tuned or tuned.get("withheld"):
        return ""
    own, best = tuned["own"], tuned["recommended"]
    saved = own["processed"] - best["processed"]
    if not best["changes"] or best["failed"] > own["failed"] or saved < CLEARLY * own["processed"]:
        return ""
    share = 100 * saved / max(1, own["processed"])
    return (
        f"`{' '.join(best['flags'])}` prefills {saved:,} tokens ({share:.0f} %) fewer in the replay"
    )


def _release(found: Mapping[str, Any]) -> str:
    """The newest release with which the replay prefills the fewest tokens, if clearly fewer.

    None is named where the replay differs from the log: the sum of a release may differ, too.
    """
    agreement = found["agreement"]
    if not agreement["comparable"] or agreement["agreeing"] != agreement["comparable"]:
        return ""
    own, *others = found["what_if"] or [{}]
    better = [row for row in others if row["failed"] <= own["failed"] and row["wrong_answers"] == 0]
    best = min(reversed(better), key=lambda row: int(row["processed"]), default=own)
    saved = own["processed"] - best["processed"] if better else 0
    if saved < max(1, CLEARLY * own.get("processed", 0)):
        return ""
    return f"{best['name']} prefills {saved:,} tokens fewer in the replay"


def _sure(found: Mapping[str, Any], ranked: Mapping[str, int]) -> str:
    agreement = found["agreement"]
    requests, comparable = agreement["requests"], agreement["comparable"]
    same = agreement["agreeing"]
    if not agreement.get("played", found.get("server") is not None):
        return f"These are the {_whose(found)}'s own numbers; no replay checks them."
    if not comparable:
        return f"Not sure: the {_whose(found)} has no count to compare the replay with."
    rest = ""
    if left := requests - comparable:
        rest = f"; {left} more {'has' if left == 1 else 'have'} no count to compare"
    reproduced = f"the replay reproduces {same} of {counted(comparable, 'request')}"
    if same == comparable:
        if not ranked and _is_open(found):
            why = "is cut" if _is_cut(found) else "leaves this open"
            return f"Not sure, as the {_whose(found)} {why}; {reproduced} to the token{rest}."
        return f"Sure: {reproduced} to the token{rest}."
    differing = [r["number"] for r in found["requests"] if r["agrees"] is False]
    return f"Less sure: {reproduced}, and not {numbered('request', differing)}{rest}."
