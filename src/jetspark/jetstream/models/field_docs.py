"""The docstrings of a class's fields, for ``help()`` and for tools that read docstrings at run time.

Python does not keep the docstrings of fields. Editors read them from the source, and so does this module, on
demand: ``help()`` looks up the text of a field in ``__slots__`` if that is a dict.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any


@cache
def field_docs(cls: type) -> dict[str, str]:
    """For each field, the docstring that follows it in the source of the class; empty without source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    node = tree.body[0]
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(text.value.value)
    return found


class FieldDocs(dict[str, str]):
    """``__slots__`` of a class: its fields, with docstrings that are read from the source on first use."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def __contains__(self, name: Any) -> bool:
        return name in field_docs(self._cls)

    def __getitem__(self, name: str) -> str:
        return field_docs(self._cls)[name]

    def __iter__(self) -> Any:
        return iter(field_docs(self._cls))

    def __len__(self) -> int:
        return len(field_docs(self._cls))


def show_field_docs(cls: type) -> None:
    """Let ``help(cls)`` show the docstrings of its fields."""
    type.__setattr__(cls, "__slots__", FieldDocs(cls))
