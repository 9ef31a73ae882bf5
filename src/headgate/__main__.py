"""`python -m headgate` is the command `headgate`."""

from __future__ import annotations

from headgate.cli.main import main

main()
