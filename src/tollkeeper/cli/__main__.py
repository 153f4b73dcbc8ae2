"""`python -m tollkeeper.cli`."""

from tollkeeper.cli.main import main

main()
