"""`python -m mlirules`: the command line without its console script."""

from mlirules.cli import main

if __name__ == "__main__":
    main()
