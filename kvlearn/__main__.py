"""`python -m kvlearn` is the command `kvlearn`, where the command itself is not on the path."""

from kvlearn.cli import app

if __name__ == "__main__":
    app(prog_name="kvlearn")
