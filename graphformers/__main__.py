"""`python -m graphformers` is the command line."""

from graphformers.cli import main

if __name__ == "__main__":
    main()
