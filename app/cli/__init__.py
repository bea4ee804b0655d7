"""The command line: `python -m app`, installed as `longshore`."""
