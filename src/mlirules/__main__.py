"""`python -m mlirules`: the command line without its console script."""

from mlirules.cli import process

if __name__ == "__main__":
    process()
