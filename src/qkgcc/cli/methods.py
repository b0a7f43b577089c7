"""`qkgcc methods`."""

from collections.abc import Iterator

from rich.table import Table

from qkgcc.cli.tables import console
from qkgcc.network.published import PublishedModel
from qkgcc.network.registry import ARRAY_DEFAULT, DEFAULT, METHODS, PAPER, PRETRAINED, pretrained
from qkgcc.network.steered import SteeredModel


def methods() -> None:
    """List the methods, with one line and the reference of each, and what runs the networks here."""
    table = Table("method", "what it does", "reference")
    for method in METHODS.values():
        table.add_row(method.name, method.line, method.reference)
    table.caption = (
        f"{DEFAULT} is taken when no method is named, {ARRAY_DEFAULT} by arrays; {' and '.join(PAPER)} is the paper's. "
        "A network of your own is a method, too: qkgcc estimate FILE --method path/to/best.safetensors\n"
        + "\n".join(_runners())
    )
    table.caption_justify = "left"
    console().print(table)


def _runners() -> Iterator[str]:
    """A line for each runner: the networks have the same one, unless a kernel has room for some only."""
    runners = {name: SteeredModel.load(pretrained(name)).runner for name in PRETRAINED}
    runners |= {name: PublishedModel.load(pretrained(name)).runner for name in PAPER}
    for runner in dict.fromkeys(runners.values()):
        names = [name for name, one in runners.items() if one == runner]
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        yield f"Here {listed} {'is' if len(names) == 1 else 'are'} run by {runner}."
