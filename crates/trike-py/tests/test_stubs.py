"""The stubs say what the module has: names and signatures."""

import ast
import inspect
import sys
from pathlib import Path

import trike
from trike import _trike

STUB = Path(trike.__file__).parent / "_trike.pyi"


def parameters(function):
    """(name, kind, has a default) of each parameter of a stub."""
    args = function.args
    plain = args.posonlyargs + args.args
    first = len(plain) - len(args.defaults)
    found = [(arg.arg, "positional", at >= first) for at, arg in enumerate(plain)]
    if args.vararg:
        found.append((args.vararg.arg, "rest", False))
    return found + [(arg.arg, "keyword", default is not None) for arg, default in zip(args.kwonlyargs, args.kw_defaults)]


def actual(function):
    names = {inspect.Parameter.KEYWORD_ONLY: "keyword", inspect.Parameter.VAR_POSITIONAL: "rest"}
    return [
        (p.name, names.get(p.kind, "positional"), p.default is not inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
    ]


def decorators(function):
    return {d.id if isinstance(d, ast.Name) else d.attr for d in function.decorator_list}


def test_the_package_is_typed():
    assert (STUB.parent / "py.typed").exists()


def test_stubs_equal_the_module():
    tree = ast.parse(STUB.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if not hasattr(_trike, "_device_bind"):
        # A build without a GPU runtime.
        functions = {name: node for name, node in functions.items() if not name.startswith("_device_")}
    module = {name: value for name, value in vars(_trike).items() if not name.startswith("__")}
    assert {n for n, v in module.items() if not inspect.isclass(v)} == set(functions)
    assert {n for n, v in module.items() if inspect.isclass(v)} == set(classes)
    for name, node in functions.items():
        assert parameters(node) == actual(module[name]), name
    for name, node in classes.items():
        if issubclass(module[name], Exception):
            continue
        members = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
        own = {n for n in vars(module[name]) if not n.startswith("__")}
        assert own == {n for n in members if not n.startswith("__")}, name
        for method, stub in members.items():
            value = inspect.getattr_static(module[name], method, None)
            assert value is not None, f"{name}.{method}"
            if "property" in decorators(stub):
                assert inspect.isgetsetdescriptor(value), f"{name}.{method}"
            elif method == "__init__" and sys.version_info < (3, 10):
                # Classes have no signatures there.
                continue
            elif method == "__init__" or not method.startswith("__"):
                expected = parameters(stub)
                found = actual(module[name] if method == "__init__" else getattr(module[name], method))
                skipped = 1 if method == "__init__" or "classmethod" in decorators(stub) else 0
                assert expected[skipped:] == found, f"{name}.{method}"


def test_everything_has_a_docstring():
    for name in trike.__all__:
        value = getattr(trike, name)
        assert name == "__version__" or inspect.getdoc(value), name
