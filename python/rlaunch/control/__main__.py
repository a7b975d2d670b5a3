"""``python -m rlaunch.control``: the same as the command ``rlaunch``."""

from . import command

if __name__ == "__main__":
    command()
