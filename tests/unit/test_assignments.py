"""No object assigns an attribute of another object: what a service needs is an argument of its constructor.

A function may assign attributes of `self` or `cls`, and of objects that it has just built.
"""

import ast
import re
from collections.abc import Iterator

from tests.paths import ROOT
from tests.table import table

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
# A class, or a function that is named as one that builds.
BUILDER = re.compile(r"_*([A-Z]|build_|create_|make_|new_)")

# Objects of the framework and of Python that are meant to be configured from outside.
ALLOWED = {
    "app/http/openapi.py: openapi",  # FastAPI's way to replace the document
    "app/log.py: excepthook",
    "app/log.py: unraisablehook",
}


def is_built_here(value: ast.expr | None) -> bool:
    """Whether the value is the result of a call that builds an object."""
    if isinstance(value, ast.IfExp):
        return is_built_here(value.body) and is_built_here(value.orelse)
    if not isinstance(value, ast.Call):
        return False
    function = value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return BUILDER.match(name) is not None


def statements(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module or function without those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, Function):
            yield from statements(node)


def built_variables(scope: ast.AST) -> set[str]:
    """The variables of a module or function that are only assigned objects that it builds."""
    built: set[str] = set()
    others: set[str] = set()
    for node in statements(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            (built if is_built_here(node.value) else others).update(names)
    return built - others


def root(target: ast.expr) -> str:
    """The variable with which `variable.member.attribute` begins."""
    while isinstance(target, ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def assigned_from_outside(scope: ast.AST, outer: frozenset[str] = frozenset()) -> Iterator[str]:
    """The attributes of other objects that a module or function assigns or deletes, in any kind of statement."""
    built = outer | built_variables(scope)
    for node in statements(scope):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del(), value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=attribute) if root(node) not in built:
                yield attribute
            case ast.Call(func=ast.Name(id="setattr" | "delattr" as function)):
                yield function
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from assigned_from_outside(node, built)


def test_no_object_assigns_an_attribute_of_another_object() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {attribute}"
        for path in (ROOT / "app").rglob("*.py")
        for attribute in assigned_from_outside(ast.parse(path.read_text()))
    }
    assigned, unneeded = found - ALLOWED, ALLOWED - found
    assert not assigned, f"pass these to the constructor, or publish an event: {sorted(assigned)}"
    assert not unneeded, f"remove these entries, which are no longer needed: {sorted(unneeded)}"


@table(
    ("body", "found"),
    [
        ("self.a = 1", []),
        ("cls.a += 1", []),
        ("job = Job(); job.a = 1", []),
        ("job = build_job(); job.state.a = 1", []),
        ("job = Job() if x else new_job(); job.a = 1", []),
        ("self.job.a = 1", ["a"]),
        ("x.a = 1", ["a"]),
        ("x.a += 1", ["a"]),
        ("x.a: int = 1", ["a"]),
        ("x.a, (y, x.b) = 1, (2, 3)", ["a", "b"]),
        ("x = z.a = 1", ["a"]),
        ("del x.a", ["a"]),
        ("[0 for x.a in y]", ["a"]),
        ("for x.a in y: pass", ["a"]),
        ("with y as x.a: pass", ["a"]),
        ("setattr(x, 'a', 1)", ["setattr"]),
        ("job = find_job(); job.a = 1", ["a"]),
        ("job = Job(); job = x; job.a = 1", ["a"]),
        ("job = Job()\n    def inner(): job.a = 1", []),
        ("def inner(): job = Job()\n    job.a = 1", ["a"]),
    ],
)
def test_assignments_from_outside_are_found(body: str, found: list[str]) -> None:
    assert list(assigned_from_outside(ast.parse(f"def function(self, cls, job, x):\n    {body}\n"))) == found
