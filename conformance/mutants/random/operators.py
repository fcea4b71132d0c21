"""Operators on the syntax tree: small changes of a decision, each at one expression or statement.

Left alone are texts, type annotations, raised errors, `strict=` and whatever only reports: events,
causes and their figures decide nothing.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Signatures: TypeAlias = Mapping[str, tuple[str, ...]]
"""Annotations of the positional parameters, of each function whose name stands once in a port."""

Change: TypeAlias = tuple[str, ast.AST]
"""The name of an operator, and what it puts in a node's place."""

REPORTS: Final = frozenset(
    [
        "emit",
        "record",
        "notify",
        "_notify",
        "_emit",
        "on_event",
        "_on_call",
        "announce",
        "rule_out",
        "settle_on",
        "transfer",
        "lost",
        "isinstance",
        "cast",
    ]
)
"""Calls that report, or that only the type checker needs."""

WORDS: Final = (
    "ledger",
    "candidates_of(",
    ".candidates",
    ", candidates)",
    "events.",
    "causes.",
    "detail",
    "message",
    "msg",
)
"""Parts of a statement's text that make it a report."""

COMPARED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip

RENAMED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
ENDS: Final = {"popleft": "pop", "appendleft": "append", "insert_after": "insert"}
BEGINS: Final = frozenset(["__init__", "_begin", "_start", "__post_init__"])
SCALARS: Final = frozenset({"int", "Count", "Pos", "bool", "float"})


@dataclass(frozen=True, slots=True)
class Site:
    """A node of a function, the statement that it is a part of, and one change of it."""

    operator: str
    node: ast.AST
    replacement: ast.AST
    statement: ast.stmt


def sites(function: ast.FunctionDef, signatures: Signatures) -> Iterator[Site]:
    """Every change that the operators make in a function, nested ones included."""
    for statement in _statements(function.body):
        for operator, replacement in _of_statement(statement, function):
            yield Site(operator, statement, replacement, statement)
        for node in _expressions(statement):
            for operator, replacement in _of_expression(node, statement, signatures):
                yield Site(operator, node, replacement, statement)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if _reports(statement):
            continue
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _reports(statement: ast.stmt) -> bool:
    """True if a statement raises, documents, or only reports."""
    if isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.Pass):
        return True
    if isinstance(statement, ast.If):
        if ast.unparse(statement.test) == "TYPE_CHECKING":
            return True
        return all(_reports(node) for node in statement.body) and not statement.orelse
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.Yield):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign):
        text = ast.unparse(statement)
        called = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(called, ast.Call) and _name_of(called) in REPORTS:
            return True
        return any(word in text for word in WORDS)
    return False


def _name_of(call: ast.Call) -> str:
    called = call.func
    return str(getattr(called, "attr", None) or getattr(called, "id", ""))


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement's own line, not of the statements within it."""
    for name, value in ast.iter_fields(statement):
        if name in {"body", "orelse", "finalbody", "handlers", "annotation", "returns", "targets"}:
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield from _within(each)
            elif isinstance(each, ast.withitem):
                yield from _within(each.context_expr)


def _within(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Call) and (
        _name_of(node) in REPORTS or any(word in ast.unparse(node) for word in WORDS)
    ):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _within(child)


def _of_statement(statement: ast.stmt, function: ast.FunctionDef) -> Iterator[Change]:
    drop = ast.Pass()
    if function.name in BEGINS:
        return  # without a field everything raises
    match statement:
        case ast.Delete(targets=targets) if all(isinstance(at, ast.Name) for at in targets):
            pass  # a name is not looked at again
        case ast.Expr(value=ast.Call()) | ast.Delete():
            yield "dropped statement", drop
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped statement", drop
        case ast.AugAssign(op=op):
            yield "dropped statement", drop
            if isinstance(op, ast.Add | ast.Sub) and not _is_text(statement.value):
                turned = copy.copy(statement)
                turned.op = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
                yield "arithmetic", turned
        case ast.Continue():
            yield "continue and break", ast.Break()
        case ast.Break():
            yield "continue and break", ast.Continue()
    returns = function.returns
    if isinstance(returns, ast.Constant) and returns.value is None:
        later = statement is not function.body[0] and not isinstance(statement, ast.Return)
        if later and statement in function.body:
            yield "early return", ast.Return(value=None)


def _of_expression(node: ast.expr, statement: ast.stmt, signatures: Signatures) -> Iterator[Change]:
    if isinstance(statement, ast.If | ast.While) and node is statement.test:
        yield "negated condition", ast.UnaryOp(op=ast.Not(), operand=node)
    match node:
        case ast.Compare(ops=ops):
            for at, operator in enumerate(ops):
                turned = copy.copy(node)
                turned.ops = [*ops[:at], COMPARED[type(operator)](), *ops[at + 1 :]]
                yield "comparison", turned
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and/or", ast.BoolOp(op=other, values=values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negated condition", operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "negated condition", ast.IfExp(test=test, body=orelse, orelse=body)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            if not (_is_text(left) or _is_text(right)):
                other_sign = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
                yield "arithmetic", ast.BinOp(left=left, op=other_sign, right=right)
                yield "off by one", ast.BinOp(left=node, op=ast.Add(), right=ast.Constant(1))
                yield "off by one", ast.BinOp(left=node, op=ast.Sub(), right=ast.Constant(1))
        case ast.BinOp(op=ast.FloorDiv()):
            yield "off by one", ast.BinOp(left=node, op=ast.Add(), right=ast.Constant(1))
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
            if value:
                yield "constant", ast.Constant(value - 1)
        case ast.Subscript(slice=ast.Constant(value=0), ctx=ast.Load()):
            yield "first/last", _with(node, slice=ast.Constant(-1))
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            if isinstance(node.ctx, ast.Load):
                yield "first/last", _with(node, slice=ast.Constant(0))
        case ast.Slice(lower=lower, upper=upper, step=None):
            for name, edge in (("lower", lower), ("upper", upper)):
                if edge is not None and not isinstance(edge, ast.Constant | ast.BinOp):
                    more = ast.BinOp(left=edge, op=ast.Add(), right=ast.Constant(1))
                    yield "off by one", _with(node, **{name: more})
        case ast.Call():
            yield from _of_call(node, signatures)
        case ast.GeneratorExp() | ast.ListComp() | ast.SetComp() | ast.DictComp():
            for at, part in enumerate(node.generators):
                if part.ifs:
                    negated = ast.UnaryOp(op=ast.Not(), operand=part.ifs[0])
                    turned_part = _with(part, ifs=[negated, *part.ifs[1:]])
                    parts = [*node.generators[:at], turned_part, *node.generators[at + 1 :]]
                    yield "negated condition", _with(node, generators=parts)


def _of_call(node: ast.Call, signatures: Signatures) -> Iterator[Change]:
    name, args = _name_of(node), node.args
    is_method = isinstance(node.func, ast.Attribute)
    if name in RENAMED and not is_method:
        yield "min/max", _with(node, func=ast.Name(RENAMED[name], ast.Load()))
    if name in ENDS and is_method:
        yield "first/last", _with(node, func=_with(node.func, attr=ENDS[name]))
    if name == "pop" and is_method and not args:
        yield "first/last", _with(node, args=[ast.Constant(0)])
    if name == "pop" and is_method and len(args) == 1 and _value(args[0]) == 0:
        yield "first/last", _with(node, args=[])
    if name == "reversed" and not is_method:
        yield "first/last", _with(node, func=ast.Name("iter", ast.Load()))
    types = signatures.get(name, ())
    if name == "range" and len(args) >= 1:
        edge = min(len(args), 2) - 1
        more = ast.BinOp(left=args[edge], op=ast.Sub(), right=ast.Constant(1))
        yield "off by one", _with(node, args=[*args[:edge], more, *args[edge + 1 :]])
    for at in range(len(args) - 1):
        alike = at + 1 < len(types) and types[at] == types[at + 1]
        both = ast.unparse(args[at]), ast.unparse(args[at + 1])
        if alike and both[0] != both[1]:
            turned = [*args[:at], args[at + 1], args[at], *args[at + 2 :]]
            yield "swapped arguments", _with(node, args=turned)
    for at, arg in enumerate(args[: len(types)]):
        plain = isinstance(arg, ast.Name | ast.Attribute) and types[at] in SCALARS - {"bool"}
        if plain:
            more = ast.BinOp(left=arg, op=ast.Add(), right=ast.Constant(1))
            yield "off by one", _with(node, args=[*args[:at], more, *args[at + 1 :]])


def _value(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _is_text(node: ast.expr) -> bool:
    """True if it cannot be a number: a text, a tuple, a list."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice)
    whole = isinstance(node, ast.Constant) and not isinstance(node.value, int)
    return (
        whole
        or isinstance(
            node, ast.Tuple | ast.List | ast.Set | ast.ListComp | ast.JoinedStr | ast.Starred
        )
        or (isinstance(node, ast.Call) and _name_of(node) in {"tuple", "list", "set", "sorted"})
    )


def _with(node: ast.AST, **fields: object) -> ast.expr:
    turned = copy.copy(node)
    for name, value in fields.items():
        setattr(turned, name, value)
    return turned  # type: ignore[return-value]


Replace: TypeAlias = Callable[[ast.AST], ast.AST | list[ast.stmt]]


class Replacing(ast.NodeTransformer):
    """Puts something else in the place of one node; lines stay as they are."""

    def __init__(self, node: ast.AST, by: Replace) -> None:
        self.node, self.by = node, by

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        if node is self.node:
            return self.by(node)
        return self.generic_visit(node)
