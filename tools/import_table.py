"""An import-linter contract that reads a table: who may import whom.

import-linter's own contracts list what is forbidden, so a new package is free until someone thinks of it.
Here a package may import what its row allows and nothing else of the project, and a module without a row
breaks the contract.

A row is "package -> allowed, allowed". The longest package that a module lies in is its row. Imports of
packages without a row are other libraries; they have contracts of their own.
"""

from collections.abc import Iterator
from typing import cast

import grimp
from importlinter import Contract, ContractCheck, fields, output

Table = dict[str, tuple[str, ...]]


def parse_rows(rows: list[str]) -> Table:
    """The table of these rows; a row without an arrow is a ValueError."""
    table: Table = {}
    for row in rows:
        package, arrow, allowed = row.partition("->")
        if not arrow:
            raise ValueError(f"import table: row {row!r} has no '->'; write 'package -> allowed, allowed'")
        table[package.strip()] = tuple(name.strip() for name in allowed.split(",") if name.strip())
    return table


def lies_in(module: str, package: str) -> bool:
    """Whether `module` is `package` or below it."""
    return module == package or module.startswith(f"{package}.")


def row_of(module: str, table: Table) -> str | None:
    """The longest package of the table that `module` lies in."""
    return max((package for package in table if lies_in(module, package)), key=len, default=None)


def broken_imports(graph: grimp.ImportGraph, table: Table) -> Iterator[str]:
    """One line for each import, or module without a row, that the table does not allow."""
    for module in sorted(graph.modules):
        if graph.is_module_squashed(module):
            continue
        package = row_of(module, table)
        if package is None:
            yield f"{module} has no row in the import table"
            continue
        for other in sorted(graph.find_modules_directly_imported_by(module)):
            target = row_of(other, table)
            if target is None or target == package:
                continue
            if not any(lies_in(other, allowed) for allowed in table[package]):
                allowed_names = ", ".join(table[package]) or "nothing"
                yield f"{module} imports {other}: {package} may import {allowed_names}"


class ImportTable(Contract):
    """Contract type `import_table`; option `rows`, a list of "package -> allowed, allowed"."""

    type_name = "import_table"

    rows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Kept when no import of the graph leaves its row."""
        del verbose
        broken = list(broken_imports(graph, parse_rows(cast("list[str]", self.rows))))
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that broke it."""
        for line in check.metadata["broken"]:
            output.print_error(line)
