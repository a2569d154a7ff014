"""Every public argument has a kind in the table of what reaches the wire."""

from __future__ import annotations

from support import wire_arguments
from support.wire_arguments import ARGUMENTS, KINDS


def test_every_argument_of_the_public_api_has_its_kind() -> None:
    found = wire_arguments.signatures()
    assert len(found) > 60
    for function, arguments in found.items():
        table = ARGUMENTS.get(function)
        assert table is not None, f"{function} has no row in wire_arguments.ARGUMENTS: what reaches the wire?"
        missing = set(arguments) - table.keys()
        assert not missing, f"{function}: give {sorted(missing)} a kind in wire_arguments.ARGUMENTS"
        assert not table.keys() - set(arguments), (
            f"{function} has no argument {table.keys() - set(arguments)}"
        )
    assert not ARGUMENTS.keys() - found.keys()


def test_the_kinds_are_known() -> None:
    used = {kind for table in ARGUMENTS.values() for kind in table.values()}
    assert used <= KINDS.keys()


def test_the_table_makes_calls() -> None:
    functions = {function for function, _, _, _ in wire_arguments.bad_calls()}
    assert len(functions) > 50
    assert sum(1 for _ in wire_arguments.bad_calls()) > 1000
