"""Files that appear whole or not at all: nobody reads half of one, and a full disk leaves what was there."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes | str) -> Path:
    """Write a file, and the folders above it where they are missing. Raises OSError with the file's name."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        if part.exists():
            part.unlink()
    return path
