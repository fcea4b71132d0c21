"""The JSON Schema of "detail": what a run tells when asked for everything."""

from typing import Any, Final

_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_INTEGERS: Final = {"type": "array", "items": _INTEGER}


def _table(about: str, /, **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_PIECE: Final = {
    "type": "object",
    "description": "Tokens: `count` of a step's prompt and reply from `at` on, or the ids.",
    "properties": {"step": _INTEGER, "at": _INTEGER, "count": _INTEGER, "tokens": _INTEGERS},
    "additionalProperties": False,
}
_PIECES: Final = _list(_PIECE)
_PIECES_OR_NULL: Final = {"type": ["array", "null"], "items": _PIECE}


def _cells() -> dict[str, Any]:
    run = _table(
        "Neighbouring cells with rising positions, and whose tokens they hold.",
        cell=_INTEGER,
        position=_INTEGER,
        count=_INTEGER,
        slots=_INTEGERS,
        holds=_PIECE,
    )
    return _list(run)


def _memory() -> dict[str, Any]:
    part = _table(
        "The cells in use of one stream of an attention cache.",
        part={"enum": ["attention", "window"]},
        stream=_INTEGER,
        size=_INTEGER,
        window={"type": ["integer", "null"]},
        runs=_cells(),
    )
    row = _table(
        "One recurrent state: where it stands, and the tokens it has folded in, if known.",
        row=_INTEGER,
        position=_INTEGER,
        slots=_INTEGERS,
        tokens=_PIECES_OR_NULL,
    )
    return _table("One memory.", cells=_list(part), rows=_list(row))


def _state() -> dict[str, Any]:
    checkpoint = _table(
        "A saved state: the tokens of its recurrent row, the cells of its window.",
        pos_min=_INTEGER,
        pos_max=_INTEGER,
        n_tokens=_INTEGER,
        row=_PIECES_OR_NULL,
        cells=_cells(),
    )
    slot = _table(
        "A slot, the tokens it believes to have, its checkpoints.",
        id=_INTEGER,
        state=_TEXT,
        tokens=_PIECES,
        checkpoints=_list(checkpoint),
    )
    holds = _table("What a place holds where it is not its key.", place=_TEXT, tokens=_PIECES)
    entry = _table(
        "One parked conversation.",
        n_tokens=_INTEGER,
        tokens=_PIECES,
        checkpoints=_INTEGER,
        bytes=_INTEGER,
        kind=_TEXT,
        holds=_list(holds),
    )
    return _table(
        "What the server held at one moment.",
        slots=_list(slot),
        memory=_memory(),
        companion=_memory() | {"type": ["object", "null"]},
        prompt_cache=_list(entry),
    )


def run_detail() -> dict[str, Any]:
    """Of a run: the scenario, and every moment that was unlike all before it."""
    return _table(
        "Written with --detail: the scenario, and all states that steps name by number.",
        about=_TEXT,
        issue=_TEXT_OR_NULL,
        kind=_TEXT_OR_NULL,
        model=_TEXT,
        options={"type": "object"},
        toml=_TEXT,
        states=_list(_state()),
    )


def step_detail() -> dict[str, Any]:
    """Of a step: its tokens, the states it went through, its logits."""
    part = _table("A named stretch of the prompt.", name=_TEXT, start=_INTEGER, end=_INTEGER)
    top = _table("One token's logits.", token=_INTEGER, cached=_NUMBER, cold=_NUMBER)
    row = _table(
        "One generated token: what greedy sampling makes of the server's row and of the cold one.",
        index=_INTEGER,
        token=_INTEGER,
        cached=_INTEGER,
        cold=_INTEGER,
        difference=_NUMBER,
        top=_list(top),
    )
    return _table(
        "Written with --detail: the prompt, the state before, and the one after each event.",
        prompt=_INTEGERS,
        parts=_list(part),
        before=_INTEGER,
        at=_INTEGERS,
        logits=_list(row),
    )
