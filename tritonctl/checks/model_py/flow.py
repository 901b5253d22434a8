# SPDX-License-Identifier: Apache-2.0
"""Control and data flow of a model.py that is certain without running it.

When in doubt, every function answers "unknown".
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import cast

from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name

BACKEND_UTILS = "triton_python_backend_utils"
_UNCONDITIONAL = (
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
_OUTER_SCOPE = (ast.Global, ast.Nonlocal)
_NAME_BINDING = (
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.While, ast.Match, ast.Lambda)
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Yield, ast.YieldFrom, ast.Assert)
_MAX_STEPS = 12
_FAILURE_CONTEXTS = {"assertRaises", "assertRaisesRegex", "raises", "suppress"}
_TYPE_TESTS = {"isinstance", "type", "hasattr"}
# Array methods that preserve the element type.
_TYPE_PRESERVING = {"reshape", "copy", "squeeze", "flatten", "ravel", "transpose", "swapaxes"}
_DTYPE_POSITIONS = {"array": 1, "asarray": 1, "zeros": 1, "ones": 1, "empty": 1, "full": 2}
_ARRAY_MAKERS = {*_DTYPE_POSITIONS, "concatenate", "stack", "zeros_like", "ones_like", "arange"}
_BUILT_IN_TYPES = {
    "float": "float64",
    "int": "int64",
    "bool": "bool",
    "object": "object",
    "str": "str",
}
_NUMPY_TYPES = {
    **{f"{kind}{size}": f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)},
    **{f"float{size}": f"float{size}" for size in (16, 32, 64)},
    **{f"complex{size}": f"complex{size}" for size in (64, 128)},
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
    """The syntax tree of one file with parent links and name bindings."""

    def __init__(self, code: PythonSource) -> None:
        self._code = code
        self._bindings_by_function: dict[Function, dict[str, tuple[ast.expr, ...] | None]] = {}
        self._nodes_by_function: dict[Function, tuple[ast.AST, ...]] = {}
        self._names_by_function: dict[Function, dict[str, list[ast.Name]]] = {}
        self._sharing: dict[Function, bool] = {}

    @classmethod
    def for_source(cls, code: PythonSource) -> Flow:
        """Return the flow of a file, created once and cached in the file's source object."""
        flow: Flow = vars(code).setdefault("_flow", None) or cls(code)
        vars(code)["_flow"] = flow
        return flow

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        nodes = self._code.nodes
        return {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The imported modules by their names in the file."""
        imports = (node for node in self._code.nodes if isinstance(node, ast.Import))
        return {alias.asname or alias.name: alias.name for node in imports for alias in node.names}

    def is_module(self, node: ast.expr, name: str) -> bool:
        """Whether an expression is the module of that name."""
        return isinstance(node, ast.Name) and self._modules.get(node.id) == name

    def is_backend_call(self, node: ast.AST, name: str) -> bool:
        """Whether a node calls that function or class of triton_python_backend_utils."""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == name
            and self.is_module(node.func.value, BACKEND_UTILS)
        )

    def _nodes_in(self, function: Function) -> tuple[ast.AST, ...]:
        if function not in self._nodes_by_function:
            self._nodes_by_function[function] = tuple(ast.walk(function))
        return self._nodes_by_function[function]

    def names_in(self, function: Function) -> dict[str, list[ast.Name]]:
        """Return the function's uses and bindings of names, nested functions included."""
        if function not in self._names_by_function:
            names: dict[str, list[ast.Name]] = {}
            for node in self._nodes_in(function):
                if isinstance(node, ast.Name):
                    names.setdefault(node.id, []).append(node)
            self._names_by_function[function] = names
        return self._names_by_function[function]

    def shares_names(self, function: Function) -> bool:
        """Whether the function has `global` or `nonlocal` names."""
        if function not in self._sharing:
            self._sharing[function] = any(
                isinstance(node, _OUTER_SCOPE) for node in self._nodes_in(function)
            )
        return self._sharing[function]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the parent of a node."""
        return self._parents.get(node)

    def function(self, node: ast.AST) -> Function | None:
        """Return the function around a node; None outside functions and in lambdas."""
        ancestor = self.parent(node)
        while ancestor is not None and not isinstance(ancestor, Function):
            ancestor = None if isinstance(ancestor, ast.Lambda) else self.parent(ancestor)
        return ancestor

    def always_runs(self, node: ast.expr, function: Function) -> bool:
        """Whether every call of the function reaches the node, if no earlier statement fails.

        The node may be in a loop over the requests, which is never empty.
        """
        child: ast.AST = node
        ancestor = self.parent(child)
        while ancestor is not None and ancestor is not function:
            if isinstance(ancestor, ast.For):
                if child not in ancestor.body or not _iterates_requests(ancestor.iter, function):
                    return False
            elif isinstance(ancestor, ast.ListComp):
                [loop, *inner_loops] = ancestor.generators
                if child is not ancestor.elt or inner_loops or loop.ifs:
                    return False
                if not _iterates_requests(loop.iter, function):
                    return False
            elif not isinstance(ancestor, _UNCONDITIONAL):
                return False
            child, ancestor = ancestor, self.parent(ancestor)
        return ancestor is function and not self.may_exit_before(node, function)

    def may_exit_before(self, node: ast.expr | ast.stmt, function: Function) -> bool:
        """Whether the function may return, raise or yield before the node."""
        return any(
            isinstance(inner, _EXITS) and inner.lineno < node.lineno
            for inner in self._nodes_in(function)
        )

    def always_used_in(self, node: ast.expr, kind: type[ast.AST], function: Function) -> bool:
        """Whether every call uses the node's value in that kind of expression.

        The expression contains the node itself or the only name assigned to it.
        """
        if not self.always_runs(node, function):
            return False
        parent = self.parent(node)
        if isinstance(parent, kind):
            return True
        if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
            return False
        name = parent.targets[0].id
        return self.assigned_values(name, function) == (node,) and any(
            isinstance(use, ast.Name)
            and use.id == name
            and isinstance(self.parent(use), kind)
            and self.always_runs(use, function)
            for use in self._nodes_in(function)
        )

    def is_conditional(self, node: ast.AST) -> bool:
        """Whether the function may run without reaching the node: `if`, `try`, `and` and others."""
        child, ancestor = node, self.parent(node)
        while ancestor is not None and not isinstance(ancestor, Function):
            first = getattr(ancestor, "test", None) or next(
                iter(getattr(ancestor, "values", ())), None
            )
            if isinstance(ancestor, _CONDITIONS) and child is not first:
                return True
            child, ancestor = ancestor, self.parent(ancestor)
        return self.may_fail(node)

    def may_fail(self, node: ast.AST) -> bool:
        """Whether the code expects a failure at the node, as in `with self.assertRaises(...)`."""
        ancestor = self.parent(node)
        while ancestor is not None and not isinstance(ancestor, Function):
            calls = [ancestor] if isinstance(ancestor, ast.Call) else []
            if isinstance(ancestor, ast.With | ast.AsyncWith):
                calls = [
                    i.context_expr for i in ancestor.items if isinstance(i.context_expr, ast.Call)
                ]
            names = (dotted_name(call.func).rpartition(".")[2] for call in calls)
            if not _FAILURE_CONTEXTS.isdisjoint(names):
                return True
            ancestor = self.parent(ancestor)
        return False

    def has_type_test(self, node: ast.expr) -> bool:
        """Whether the function tests the type of the value, as in `isinstance(value, bytes)`."""
        function, text = self.function(node), ast.unparse(node)
        return any(
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in _TYPE_TESTS
            and call.args
            and ast.unparse(call.args[0]) == text
            for call in (self._nodes_in(function) if function else ())
        )

    def assigned_values(self, name: str, function: Function) -> tuple[ast.expr, ...] | None:
        """Return every value assigned to a local name; None if it is also bound in other ways."""
        if function not in self._bindings_by_function:
            self._bindings_by_function[function] = self._bindings(function)
        return self._bindings_by_function[function].get(name, ())

    def _bindings(self, function: Function) -> dict[str, tuple[ast.expr, ...] | None]:
        values: dict[str, list[ast.expr]] = {}
        otherwise_bound: set[str] = set()
        for node in self._nodes_in(function):
            if isinstance(node, ast.Name):
                parent = self.parent(node)
                if isinstance(parent, ast.Assign) and parent.targets == [node]:
                    values.setdefault(node.id, []).append(parent.value)
                elif not isinstance(node.ctx, ast.Load):
                    otherwise_bound.add(node.id)
            elif node is not function:
                otherwise_bound.update(_bound_names(node))
        return {
            name: None if name in otherwise_bound else tuple(values.get(name, ()))
            for name in otherwise_bound | set(values)
        }

    def resolve_name(self, node: ast.expr) -> ast.expr:
        """Return the value of a name that is assigned once; else the node itself."""
        for _ in range(_MAX_STEPS):
            function = self.function(node)
            if not isinstance(node, ast.Name) or function is None:
                return node
            values = self.assigned_values(node.id, function)
            if values is None or len(values) != 1 or values[0].lineno > node.lineno:
                return node
            node = values[0]
        return node

    def is_array(self, node: ast.expr) -> bool:
        """Whether a value surely is an array: of numpy, or of a tensor's `as_numpy`."""
        node = self.resolve_name(node)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if self._is_numpy(node.func.value):
            return node.func.attr in _ARRAY_MAKERS
        return node.func.attr == "as_numpy" and not node.args and not node.keywords

    def element_type(self, node: ast.expr) -> str | None:
        """Return numpy's name for the element type of an array; "str" for numpy strings."""
        is_element = False
        for _ in range(_MAX_STEPS):
            node = self.resolve_name(node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr not in _TYPE_PRESERVING or self._is_numpy(node.func.value):
                    result = self._type_of_call(node, node.func)
                    # An element of an object array may have any type.
                    return None if is_element and result == "object" else result
                node = node.func.value
            elif isinstance(node, ast.Subscript):
                node, is_element = node.value, True
            elif isinstance(node, ast.Attribute) and node.attr == "T":
                node = node.value
            else:
                return None
        return None

    def _type_of_call(self, call: ast.Call, callee: ast.Attribute) -> str | None:
        if callee.attr == "astype" and call.args:
            return self._named_type(call.args[0])
        return self._constructed_type(call, callee.attr) if self._is_numpy(callee.value) else None

    def _is_numpy(self, node: ast.expr) -> bool:
        return self.is_module(node, "numpy")

    def _constructed_type(self, call: ast.Call, name: str) -> str | None:
        dtype_position = _DTYPE_POSITIONS.get(name)
        if dtype_position is None or any(isinstance(node, ast.Starred) for node in call.args):
            return None
        dtype_nodes = [node.value for node in call.keywords if node.arg == "dtype"] + call.args[
            dtype_position:
        ]
        if dtype_nodes:
            return self._named_type(dtype_nodes[0])
        if any(node.arg is None for node in call.keywords):
            return None
        if name in ("array", "asarray") and call.args:
            return _type_of_literal(call.args[0])
        return None

    def _named_type(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return _NUMPY_TYPES.get(node.value)
        if isinstance(node, ast.Attribute) and self._is_numpy(node.value):
            return _NUMPY_TYPES.get(node.attr)
        return _BUILT_IN_TYPES.get(node.id) if isinstance(node, ast.Name) else None


def _bound_names(node: ast.AST) -> Iterable[str]:
    """Return the names that a node binds other than by assignment."""
    if isinstance(node, _OUTER_SCOPE):
        return node.names
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, ast.alias):
        return (node.asname or node.name,)
    if isinstance(node, _NAME_BINDING) and node.name:
        return (node.name,)
    return ()


def _iterates_requests(node: ast.expr, function: Function) -> bool:
    """Whether a loop iterates over the function's requests: `requests`, `enumerate(requests)`."""
    if isinstance(node, ast.Call) and dotted_name(node.func) == "enumerate" and node.args:
        node = node.args[0]
    return isinstance(node, ast.Name) and node.id == requests_parameter(function)


def requests_parameter(function: Function) -> str | None:
    """Return the name of the second parameter: the requests of `execute`."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1] if len(names) > 1 else None


def literal_value(node: ast.expr | None) -> object:
    """Return the value of a literal; None for anything else."""
    try:
        return cast("object", ast.literal_eval(node)) if node is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _type_of_literal(node: ast.expr) -> str | None:
    """Return the element type that numpy gives a list of constants."""
    kinds = set(_constant_types(node))
    if len(kinds) != 1:
        return None
    return {str: "str", bytes: "bytes", float: "float64", int: "int64", bool: "bool"}.get(
        kinds.pop()
    )


def _constant_types(node: ast.expr) -> Iterator[type]:
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _constant_types(element)
    elif isinstance(node, ast.JoinedStr):
        yield str
    elif isinstance(node, ast.Constant):
        yield type(node.value)
    else:
        yield type(None)
