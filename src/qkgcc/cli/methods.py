"""`qkgcc methods`."""

from rich.table import Table

from qkgcc.cli.tables import console
from qkgcc.methods import DEFAULT, METHODS


def methods() -> None:
    """List the methods, with one line and the reference of each."""
    table = Table("method", "what it does", "reference")
    for method in METHODS.values():
        table.add_row(method.name, method.line, method.reference)
    table.caption = (
        f"{DEFAULT} is taken when no method is named. A network of your own is a method too: "
        "qkgcc estimate FILE --method path/to/best.safetensors"
    )
    table.caption_justify = "left"
    console().print(table)
