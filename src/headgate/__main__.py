"""Entry point of `python -m headgate`."""

from headgate.cli.main import main

main()
