"""The command line: parse, call, print, exit code. No logic of its own."""

from gradian.cli.app import main

__all__ = ["main"]
