"""The commands: `main.py` lists them, one file each."""
