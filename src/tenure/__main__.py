"""`python -m tenure`: the command line."""

from tenure.cli import main

main()
