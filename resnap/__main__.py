"""``python -m resnap`` is the command ``resnap``."""

from resnap.scheduler.cli import main

main()
