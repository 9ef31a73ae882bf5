"""Entry point of `python -m headgate`."""

from __future__ import annotations

from headgate.cli.main import main

main()
