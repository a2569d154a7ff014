"""A disk whose power can be cut: an ext4 file system in a file, on a loop device.

EXT4_IOC_SHUTDOWN makes the file system stand still at once, with nothing flushed any more, not even its
journal: what was not synced is lost, as it is when the power goes. Mounting it again replays the journal,
as a boot does. Needs root, loop devices and mkfs.ext4.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import struct
import subprocess
import time
from pathlib import Path
from typing import Self

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_LOOP_MAJOR = 7
_BUSY_FOR = 10.0


class NoPower(Exception):
    """This machine can't mount such a disk; the text says why."""


class Disk:
    """``path`` is the root of a fresh file system until the block ends."""

    def __init__(self, folder: Path, megabytes: int = 256) -> None:
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        self._megabytes = megabytes
        self._mounted = False

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NoPower("mounting a file system needs root")
        for tool in ("mkfs.ext4", "losetup", "mount", "umount"):
            if shutil.which(tool) is None:
                raise NoPower(f"{tool} is not installed")
        self.path.mkdir(parents=True)
        with open(self._image, "wb") as image:
            image.truncate(self._megabytes * 1024 * 1024)
        try:
            # All tables now: a background thread that fills them later would be noise beside the server.
            options = "lazy_itable_init=0,lazy_journal_init=0"
            _command("mkfs.ext4", "-q", "-F", "-E", options, str(self._image))
            _loop_node()
            self.mount()
        except (NoPower, OSError) as error:
            raise NoPower(f"no ext4 on a loop device here: {error}") from None
        return self

    def __exit__(self, *exc: object) -> None:
        self.unmount()
        self._image.unlink(missing_ok=True)

    def mount(self) -> None:
        _command("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.path))
        self._mounted = True

    def unmount(self) -> None:
        """The files of a process that was just killed may be open for a moment."""
        deadline = time.monotonic() + _BUSY_FOR
        while self._mounted:
            try:
                _command("umount", str(self.path))
                self._mounted = False
            except NoPower:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def sync(self) -> None:
        """Everything written so far is on the disk afterwards."""
        _command("sync", "-f", str(self.path))

    def cut(self) -> None:
        """The power goes: from here on nothing reaches the disk. ``unmount`` and ``mount`` bring it back."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(folder)


def _command(*args: str) -> str:
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        raise NoPower(f"{args[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _loop_node() -> None:
    """A bare container has the loop devices of the kernel but not always their nodes."""
    node = Path(_command("losetup", "-f").strip())
    number = re.search(r"\d+$", node.name)
    if not node.exists() and number:
        os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, int(number.group())))
