"""`python -m app`: the command line of the broker."""

from app.cli.commands import main

if __name__ == "__main__":
    main()
