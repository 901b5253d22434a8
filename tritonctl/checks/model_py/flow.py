# SPDX-License-Identifier: Apache-2.0
"""What is certain about a model.py without running it: what always runs, what a name stands for.

Every answer errs on the side of not knowing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import cast

from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name

BACKEND_UTILS = "triton_python_backend_utils"
_SURE = (
    ast.Expr,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Return,
    ast.Attribute,
    ast.Call,
    ast.Subscript,
    ast.Starred,
    ast.keyword,
    ast.List,
    ast.Tuple,
    ast.Dict,
    ast.BinOp,
    ast.UnaryOp,
    ast.NamedExpr,
    ast.With,
    ast.withitem,
)
_OUTER = (ast.Global, ast.Nonlocal)
_NAMED = (
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.While, ast.Match, ast.Lambda)
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Yield, ast.YieldFrom, ast.Assert)
_DEEPEST = 12
_EXPECTING = {"assertRaises", "assertRaisesRegex", "raises", "suppress"}
_ASKS_TYPE = {"isinstance", "type", "hasattr"}
# Of a call that leaves an array's type as it is.
_KEEPS_TYPE = {"reshape", "copy", "squeeze", "flatten", "ravel", "transpose", "swapaxes"}
_MAKES = {"array": 1, "asarray": 1, "zeros": 1, "ones": 1, "empty": 1, "full": 2}
_BUILT_IN = {"float": "float64", "int": "int64", "bool": "bool", "object": "object", "str": "str"}
_TYPES = {
    **{f"{kind}{size}": f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)},
    **{f"float{size}": f"float{size}" for size in (16, 32, 64)},
    "half": "float16",
    "single": "float32",
    "double": "float64",
    "bool_": "bool",
    "bool": "bool",
    "object_": "object",
    "object": "object",
    "bytes_": "bytes",
    "str_": "str",
    "str": "str",
    "unicode_": "str",
}


class Flow:
    """One file's syntax tree, with what stands around each node."""

    def __init__(self, code: PythonSource) -> None:
        self._code = code
        self._bound: dict[Function, dict[str, tuple[ast.expr, ...] | None]] = {}
        self._walked: dict[Function, tuple[ast.AST, ...]] = {}

    @classmethod
    def of(cls, code: PythonSource) -> Flow:
        """The one of a file, made once and kept with it, as its cached properties are."""
        kept: Flow = vars(code).setdefault("_flow", None) or cls(code)
        vars(code)["_flow"] = kept
        return kept

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        nodes = self._code.nodes
        return {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The modules that the file imports as such, by the name it calls them."""
        imports = (node for node in self._code.nodes if isinstance(node, ast.Import))
        return {one.asname or one.name: one.name for node in imports for one in node.names}

    def is_module(self, node: ast.expr, name: str) -> bool:
        """Whether an expression is that module."""
        return isinstance(node, ast.Name) and self._modules.get(node.id) == name

    def calls_backend(self, node: ast.AST, name: str) -> bool:
        """Whether a node is a call of something in triton_python_backend_utils."""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == name
            and self.is_module(node.func.value, BACKEND_UTILS)
        )

    def _inside(self, function: Function) -> tuple[ast.AST, ...]:
        if function not in self._walked:
            self._walked[function] = tuple(ast.walk(function))
        return self._walked[function]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What a node is part of."""
        return self._parents.get(node)

    def function(self, node: ast.AST) -> Function | None:
        """The function that a node stands in."""
        above = self.parent(node)
        while above is not None and not isinstance(above, Function):
            above = None if isinstance(above, ast.Lambda) else self.parent(above)
        return above

    def surely_runs(self, node: ast.expr, function: Function) -> bool:
        """Whether every call of the function comes to the node, if nothing fails before it.

        A loop over the requests, which is never empty, may be around it.
        """
        child: ast.AST = node
        above = self.parent(child)
        while above is not None and above is not function:
            if isinstance(above, ast.For):
                if child not in above.body or not _is_over(above.iter, function):
                    return False
            elif not isinstance(above, _SURE):
                return False
            child, above = above, self.parent(above)
        return above is function and not self.may_end_before(node, function)

    def may_end_before(self, node: ast.expr | ast.stmt, function: Function) -> bool:
        """Whether the function may return, raise or yield above the node."""
        return any(
            isinstance(one, _EXITS) and one.lineno < node.lineno for one in self._inside(function)
        )

    def surely_inside(self, node: ast.expr, kind: type[ast.AST], function: Function) -> bool:
        """Whether every call uses the node's value in that kind of expression, as `value.shape`.

        It stands there itself, or by the one name that it is given.
        """
        if not self.surely_runs(node, function):
            return False
        around = self.parent(node)
        if isinstance(around, kind):
            return True
        if not isinstance(around, ast.Assign) or not isinstance(around.targets[0], ast.Name):
            return False
        name = around.targets[0].id
        return self.assigned(name, function) == (node,) and any(
            isinstance(one, ast.Name)
            and one.id == name
            and isinstance(self.parent(one), kind)
            and self.surely_runs(one, function)
            for one in self._inside(function)
        )

    def is_conditional(self, node: ast.AST) -> bool:
        """Whether its function may run without coming to the node: `if`, `try`, `and` and such."""
        child, above = node, self.parent(node)
        while above is not None and not isinstance(above, Function):
            first = getattr(above, "test", None) or next(iter(getattr(above, "values", ())), None)
            if isinstance(above, _CONDITIONS) and child is not first:
                return True
            child, above = above, self.parent(above)
        return self.may_fail(node)

    def may_fail(self, node: ast.AST) -> bool:
        """Whether the code expects a failure there: `with self.assertRaises(...)` and such."""
        above = self.parent(node)
        while above is not None and not isinstance(above, Function):
            calls = [above] if isinstance(above, ast.Call) else []
            if isinstance(above, ast.With | ast.AsyncWith):
                calls = [
                    i.context_expr for i in above.items if isinstance(i.context_expr, ast.Call)
                ]
            names = (dotted_name(call.func).rpartition(".")[2] for call in calls)
            if not _EXPECTING.isdisjoint(names):
                return True
            above = self.parent(above)
        return False

    def is_tested(self, node: ast.expr) -> bool:
        """Whether its function asks of which type the value is: `isinstance(value, bytes)`."""
        function, written = self.function(node), ast.unparse(node)
        return any(
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Name)
            and one.func.id in _ASKS_TYPE
            and one.args
            and ast.unparse(one.args[0]) == written
            for one in (self._inside(function) if function else ())
        )

    def assigned(self, name: str, function: Function) -> tuple[ast.expr, ...] | None:
        """Every value that a local name is given; None where it is bound in other ways, too."""
        if function not in self._bound:
            self._bound[function] = self._bindings(function)
        return self._bound[function].get(name, ())

    def _bindings(self, function: Function) -> dict[str, tuple[ast.expr, ...] | None]:
        values: dict[str, list[ast.expr]] = {}
        others: set[str] = set()
        for node in self._inside(function):
            if isinstance(node, ast.Name):
                above = self.parent(node)
                if isinstance(above, ast.Assign) and above.targets == [node]:
                    values.setdefault(node.id, []).append(above.value)
                elif not isinstance(node.ctx, ast.Load):
                    others.add(node.id)
            elif node is not function:
                others.update(_bound_names(node))
        return {
            name: None if name in others else tuple(values.get(name, ()))
            for name in others | set(values)
        }

    def only_value(self, node: ast.expr) -> ast.expr:
        """What a name stands for, where it is given one value; else the node itself."""
        for _ in range(_DEEPEST):
            function = self.function(node)
            if not isinstance(node, ast.Name) or function is None:
                return node
            values = self.assigned(node.id, function)
            if values is None or len(values) != 1 or values[0].lineno > node.lineno:
                return node
            node = values[0]
        return node

    def element_type(self, node: ast.expr) -> str | None:
        """The type of the elements of an array as numpy calls it; "str" for its own strings."""
        picked = False
        for _ in range(_DEEPEST):
            node = self.only_value(node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr not in _KEEPS_TYPE or self._is_numpy(node.func.value):
                    result = self._type_of_call(node, node.func)
                    # What is picked out of an array of objects may be anything.
                    return None if picked and result == "object" else result
                node = node.func.value
            elif isinstance(node, ast.Subscript):
                node, picked = node.value, True
            elif isinstance(node, ast.Attribute) and node.attr == "T":
                node = node.value
            else:
                return None
        return None

    def _type_of_call(self, call: ast.Call, callee: ast.Attribute) -> str | None:
        if callee.attr == "astype" and call.args:
            return self._type(call.args[0])
        return self._made_type(call, callee.attr) if self._is_numpy(callee.value) else None

    def _is_numpy(self, node: ast.expr) -> bool:
        return self.is_module(node, "numpy")

    def _made_type(self, call: ast.Call, name: str) -> str | None:
        place = _MAKES.get(name)
        if place is None or any(isinstance(one, ast.Starred) for one in call.args):
            return None
        given = [one.value for one in call.keywords if one.arg == "dtype"] + call.args[place:]
        if given:
            return self._type(given[0])
        if any(one.arg is None for one in call.keywords):
            return None
        if name in ("array", "asarray") and call.args:
            return _type_of_literal(call.args[0])
        return None

    def _type(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return _TYPES.get(node.value)
        if isinstance(node, ast.Attribute) and self._is_numpy(node.value):
            return _TYPES.get(node.attr)
        return _BUILT_IN.get(node.id) if isinstance(node, ast.Name) else None


def _bound_names(node: ast.AST) -> Iterable[str]:
    """The names that a node binds in a way other than by assignment to them."""
    if isinstance(node, _OUTER):
        return node.names
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, ast.alias):
        return (node.asname or node.name,)
    if isinstance(node, _NAMED) and node.name:
        return (node.name,)
    return ()


def _is_over(node: ast.expr, function: Function) -> bool:
    """Whether a loop goes over the function's requests: `requests`, `enumerate(requests)`."""
    if isinstance(node, ast.Call) and dotted_name(node.func) == "enumerate" and node.args:
        node = node.args[0]
    return isinstance(node, ast.Name) and node.id == requests_of(function)


def requests_of(function: Function) -> str | None:
    """What `execute` calls its requests."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1] if len(names) > 1 else None


def literal(node: ast.expr | None) -> object:
    """What a literal stands for; None for anything else."""
    try:
        return cast("object", ast.literal_eval(node)) if node is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _type_of_literal(node: ast.expr) -> str | None:
    """What numpy makes of a list of constants."""
    kinds = set(_kinds(node))
    if len(kinds) != 1:
        return None
    return {str: "str", bytes: "bytes", float: "float64", int: "int64", bool: "bool"}.get(
        kinds.pop()
    )


def _kinds(node: ast.expr) -> Iterator[type]:
    if isinstance(node, ast.List | ast.Tuple):
        for one in node.elts:
            yield from _kinds(one)
    elif isinstance(node, ast.JoinedStr):
        yield str
    elif isinstance(node, ast.Constant):
        yield type(node.value)
    else:
        yield type(None)
