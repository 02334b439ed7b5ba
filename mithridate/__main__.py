"""`python -m mithridate`."""

from mithridate.cli import main

main()
