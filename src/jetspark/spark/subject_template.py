"""Templates of subjects, such as ``orders.{region}.{id}``: read once, for ``route`` and the command line."""

from __future__ import annotations

import string
from dataclasses import dataclass

from jetspark.errors import InvalidArgument
from jetspark.wire.subjects import validate_subject


@dataclass(frozen=True, slots=True)
class SubjectTemplate:
    """``parts``: literal text and the column that follows it, or None."""

    parts: tuple[tuple[str, str | None], ...]

    @property
    def columns(self) -> list[str]:
        """The columns it names; empty for a fixed subject."""
        return [column for _, column in self.parts if column is not None]

    def filled(self, token: str = "") -> str:
        """The subject with the same token for each column: ``*`` makes it a filter."""
        return "".join(text + ("" if column is None else token) for text, column in self.parts)


def parse_template(template: str, *, field: str = "template") -> SubjectTemplate:
    """Read a template. Raises InvalidArgument when no row can make a subject of it."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InvalidArgument(
            field, template, f"{error}; write a column as {{name}}, and a literal brace twice"
        ) from None
    if any(name is not None and (not name.strip() or form or how) for _, name, form, how in parts):
        raise InvalidArgument(field, template, "must have a column name between braces, and nothing else")
    found = SubjectTemplate(tuple((text, name) for text, name, _, _ in parts))
    validate_subject(found.filled("x"), field=field)
    return found
