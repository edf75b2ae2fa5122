"""`python -m collsynth` is the command line."""

from .cli import main

main()
