"""Writes what is generated: the notebooks from the examples, and the page of the API from the stubs. `python generate.py` with the
package installed; `test_generated.py` checks that the files are these."""

import ast
import inspect
import json
import re
from pathlib import Path

import trike
from trike import _trike

CRATE = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path for path in (CRATE / "examples").glob("*.py") if not path.name.startswith("_"))
PAGE = CRATE.parents[1] / "docs" / "src" / "python-api.md"


def cells(source):
    """(kind, text) of the cells of a script: its docstring, then the blocks between blank lines at the top level."""
    tree = ast.parse(source)
    lines = source.splitlines()
    blocks = []
    end = 0
    for node in tree.body[1:]:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        # A comment above belongs to it.
        while lines[start - 2].startswith("#"):
            start -= 1
        if blocks and not any(line.strip() == "" for line in lines[end : start - 1]):
            blocks[-1][1] = node.end_lineno
        else:
            blocks.append([start, node.end_lineno])
        end = node.end_lineno
    yield "markdown", ast.get_docstring(tree)
    for start, end in blocks:
        yield "code", "\n".join(lines[start - 1 : end])


def notebook(path):
    """The notebook of a script, as text."""
    made = []
    for at, (kind, text) in enumerate(cells(path.read_text(encoding="utf-8"))):
        cell = {"cell_type": kind, "id": f"cell-{at}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            cell.update(execution_count=None, outputs=[])
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


class File:
    """The definitions of a source file or a stub."""

    def __init__(self, name):
        self.text = (Path(trike.__file__).parent / name).read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        kinds = (ast.ClassDef, ast.FunctionDef)
        self.defined = {node.name: node for node in self.tree.body if isinstance(node, kinds)}
        self.native = name.endswith(".pyi")

    def signature(self, node, name, drop_self):
        """`name(arguments) -> result` as it is written, on one line."""
        lines = self.text.splitlines()[node.lineno - 1 : node.body[0].end_lineno]
        head = re.sub(r"\s+", " ", " ".join(line.strip() for line in lines))
        head = head[head.index("(") :]
        depth = 0
        for at, char in enumerate(head):
            depth += (char in "([") - (char in ")]")
            if char == ":" and depth == 0:
                head = head[:at]
                break
        head = head.replace("( ", "(").replace(", )", ")").replace('"os.PathLike[str]"', "PathLike")
        if drop_self:
            head = re.sub(r"^\((self|cls)(, )?", "(", head)
        return f"{name}{head.replace(' -> None', '')}"

    def doc(self, node, value):
        found = inspect.getdoc(value) if self.native and value is not None else None
        return ast.get_docstring(node) or found or ""


def code(text):
    return f"`{text}`"


def members(node, file, value):
    """A line for each public method and property of a class."""
    for stub in (m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")):
        decorators = {d.id if isinstance(d, ast.Name) else getattr(d, "attr", "") for d in stub.decorator_list}
        text = file.signature(stub, stub.name, "staticmethod" not in decorators)
        text = text.replace("()", "", 1) if "property" in decorators else text
        member = inspect.getattr_static(value, stub.name, None) if value is not None else None
        doc = file.doc(stub, member.__func__ if isinstance(member, classmethod) else member)
        doc = " ".join(doc.split("\n\n")[0].split())
        yield stub.name, f"* {code(text)}{': ' if doc else ''}{doc}"


def described(name, file, native):
    """Lines of a definition; a class in Python may add to the native one of its name."""
    module = _trike
    node, value = file.defined[name], getattr(module, name, None)
    if isinstance(node, ast.FunctionDef):
        return [f"### {code(name)}", "", code(file.signature(node, name, False)), "", file.doc(node, value), ""]
    methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
    made = methods.get("__init__") or methods.get("__new__")
    lines = [f"### {code(name)}", ""]
    if made is not None:
        # A class has no result.
        lines += [code(file.signature(made, name, True).partition(" -> ")[0]), ""]
    doc = file.doc(node, value)
    lines += [doc, ""] if doc else []
    found = dict(members(node, file, value))
    if not file.native and name in native.defined:
        found = {**dict(members(native.defined[name], native, value)), **found}
    return lines + list(found.values()) + ([""] if found else [])


def page():
    """The page of the API."""
    stub = File("_trike.pyi")
    lines = [
        "# Python API",
        "",
        "<!-- Generated by crates/trike-py/tests/generate.py from the package's stubs and docstrings. -->",
        "",
        "What [Python](python.md) describes, name by name.",
        "",
    ]
    own = [File("_models.py"), File("_jobs.py")]
    modules = [("trike", trike.__all__, own), ("trike.vsa", trike.vsa.__all__, [])]
    for name in ("compat", "llama", "torch", "transformers"):
        file = File(f"{name}.py")
        names = next(
            ast.literal_eval(node.value)
            for node in file.tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        )
        modules.append((f"trike.{name}", names, [file]))
    for module, names, files in modules:
        lines += [f"## {module}", ""]
        for name in sorted(names, key=lambda name: (name[0].islower(), name)):
            file = next((file for file in [*files, stub] if name in file.defined), None)
            if file is not None:
                lines += described(name, file, stub)
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    for path in EXAMPLES:
        path.with_suffix(".ipynb").write_text(notebook(path), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
