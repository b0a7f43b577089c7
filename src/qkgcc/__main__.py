"""`python -m qkgcc`: the command line."""

from qkgcc.cli import main

main()
