"""Where a run takes place: versions, commit and machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections import ChainMap
from pathlib import Path

from curlicue.records.files import Json

PACKAGES = "curlicue", "torch", "numpy", "numba", "scikit-learn", "safetensors"


def environment(threads: int, device: str = "cpu") -> Json:
    """Versions, commit, processor, cores, threads and device of this process."""
    ours = _git("ls-files", "--error-unmatch", __file__) is not None  # else the package was merely installed here
    return {
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "commit": _git("rev-parse", "HEAD") if ours else None,
        "modified": _is_modified() if ours else False,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device": device,
    }


def latest(environment: Json) -> Json:
    """The environment in which a run ended: the first one with all changes that later resumptions brought."""
    return dict(ChainMap(*reversed(environment.get("resumed", [])), environment))


def _version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed, as numba need not be."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_modified() -> bool | None:
    """Whether the source tree differs from its commit; None if git cannot say."""
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return None if changes is None else bool(changes)


def _git(*arguments: str) -> str | None:
    """The answer of git about the source tree that this package lies in; None if git fails."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
