"""Side-by-side measurements on this machine: `python3 dev.py bench`."""
