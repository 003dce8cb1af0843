"""Which file names a folder may contain: paths below it. A folder may come from somebody else.

Everything that reads or continues one of our folders uses these checks:

- `check_inner_name` for names that are read from a file and joined to the folder,
- `refuse_links_out` for the folder itself, before anything in it is read or written.
"""

import os
from pathlib import Path, PureWindowsPath

from graphformers.errors import ArtifactError
from graphformers.records import ELSEWHERE, shown


def check_inner_name(source: Path, name: object) -> None:
    """Refuses a name in the file `source` that may not be joined to the folder of that file."""
    if not is_inner_name(name):
        expected = "a name inside the folder, such as vectors/00000.npy"
        words = f"names the file {shown(name)}, expected {expected}"
        raise ArtifactError(f"{source}: {words}; {ELSEWHERE}")


def is_inner_name(name: object) -> bool:
    """Whether a name is a plain relative path: no "..", no drive, all of it printable."""
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return False
    # C:x is relative for us, but not everywhere the folder may be taken
    if PureWindowsPath(name).drive:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def refuse_links_out(folder: Path) -> None:
    """Refuses a folder in which a link, however deep, leads out of it or back to it.

    The folder may itself be reached through a link. Following one that leads back has no end.
    """
    below = os.path.realpath(folder).rstrip(os.sep) + os.sep
    for place, folders, files in os.walk(folder, onerror=_raise_unless_gone):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if os.path.islink(path) and not os.path.realpath(path).startswith(below):
                raise ArtifactError(
                    f"{folder}: holds the link {os.path.relpath(path, folder)!r} to "
                    f"{os.readlink(path)!r}, which leads out of the folder; expected all files "
                    "inside: put a copy in the place of the link, or remove it"
                )


def _raise_unless_gone(error: OSError) -> None:
    # links in a folder that cannot be listed could still be followed by name
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
