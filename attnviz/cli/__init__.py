"""The command line: one file a command, the options that they share, and the program that they make up."""

from attnviz.cli.start import main

__all__ = ["main"]
