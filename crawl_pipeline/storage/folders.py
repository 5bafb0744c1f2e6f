"""Folders: the home is made, and entries outlive a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from crawl_pipeline.errors import InfrastructureError


def make_home(folder: Path) -> Path:
    """Make CRAWL_HOME, or a folder in it, where it is not there yet. Raises InfrastructureError for what cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file is in its place or above it, or the folder above is somebody else's
        raise InfrastructureError(
            f"CRAWL_HOME: {folder} cannot be made a folder ({error.strerror}); choose another"
        ) from error
    return folder


def sync_folder(folder: Path) -> None:
    """Bring the folder's entries to the disk, where its file system can do that at all. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems cannot sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
