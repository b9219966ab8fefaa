"""``python -m scheduler`` is the command ``resnap``."""

from scheduler.cli import main

main()
