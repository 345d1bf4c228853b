"""The modules that the coordinator's image compiles, as far as their sources can be read.

What the compiler does another way without a word is not in them; `make test-compiled` compiles.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPILED: list[str] = PROJECT["tool"]["lineside"]["compiled"]

ANOTHER_WAY = {
    "cached_property": "it is made anew at each look: keep it in a field",
    "Annotated": "its bounds are lost: move what is decoded to another module",
    "Meta": "as `Annotated`",
    "convert": "types of fields are lost: move what is decoded to another module",
    "Decoder": "as `convert`",
    "getsource": "there is none",
    "signature": "there is none",
}
BUILTINS = {"dict", "list", "set", "str", "int", "bytes", "tuple", "OrderedDict", "defaultdict"}


def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())


def names(node: ast.AST) -> set[str]:
    """Return the last parts of all names in a piece of source."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    found |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {each.name for each in ast.walk(node) if isinstance(each, ast.alias)}


def classes(module: str) -> Iterator[ast.ClassDef]:
    return (each for each in ast.walk(tree(module)) if isinstance(each, ast.ClassDef))


def test_they_are_there_once_and_sorted() -> None:
    assert sorted(set(COMPILED)) == COMPILED
    assert [each for each in COMPILED if not (ROOT / f"{each.replace('.', '/')}.py").exists()] == []


@pytest.mark.parametrize("module", COMPILED)
def test_nothing_in_them_is_compiled_another_way(module: str) -> None:
    used = names(tree(module)) & ANOTHER_WAY.keys()
    assert {each: ANOTHER_WAY[each] for each in used} == {}
    for each in classes(module):
        assert not {name for base in each.bases for name in names(base)} & BUILTINS, each.name


def test_no_other_class_inherits_from_theirs() -> None:
    owned = {f"{module}.{each.name}" for module in COMPILED for each in classes(module)}
    heirs = []
    for path in sorted(ROOT.glob("*/**/*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.relative_to(ROOT).parts[0].startswith(".") or module in COMPILED:
            continue
        source = ast.parse(path.read_text())
        meant = {
            alias.asname or alias.name: f"{each.module}.{alias.name}"
            for each in ast.walk(source)
            if isinstance(each, ast.ImportFrom)
            for alias in each.names
        }
        heirs += [
            f"{module}.{each.name}"
            for each in ast.walk(source)
            if isinstance(each, ast.ClassDef)
            for base in each.bases
            if not isinstance(base, ast.Subscript)
            if owned & {meant.get(name, "") for name in names(base)}
        ]
    assert heirs == []


def test_a_tree_that_is_worked_in_has_nothing_compiled_in_it() -> None:
    """It would go on running as it was compiled, whatever becomes of its source."""
    if (ROOT / ".git").exists():
        folders = [*ROOT.glob("*.so"), *ROOT.glob("[a-z]*/**/*__mypyc*.so")]
        beside = [each for name in COMPILED for each in ROOT.glob(f"{name.replace('.', '/')}.*so")]
        assert folders + beside == []
