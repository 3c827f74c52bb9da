import importlib
import importlib.metadata
import json
import os
import subprocess
from pathlib import Path

from curlicue.records.environment import environment, latest
from curlicue.version import __version__

module = importlib.import_module("curlicue.records.environment")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_environment_has_versions_processor_cores_and_threads():
    where = environment(threads=3)
    assert where.keys() == {
        *("python", "versions", "commit", "modified", "platform", "processor", "cores", "threads", "device")
    }
    assert where["versions"]["curlicue"] == __version__
    assert where["versions"].keys() >= {"torch", "numpy", "scikit-learn", "safetensors"}
    assert all(where["versions"].values())
    assert (where["cores"], where["threads"], where["device"]) == (os.cpu_count(), 3, "cpu")
    assert environment(3, "cuda:1")["device"] == "cuda:1"
    assert where["processor"]
    json.dumps(where)


def test_the_commit_is_that_of_the_source_tree_and_says_whether_files_were_changed_since(tmp_path, monkeypatch):
    source = tmp_path / "records.py"
    source.write_text("as committed")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    monkeypatch.setattr(module, "__file__", str(source))
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked.txt").touch()
    assert [environment(1)[name] for name in ("commit", "modified")] == [commit, False]
    source.write_text("as changed")
    assert [environment(1)[name] for name in ("commit", "modified")] == [commit, True]
    known = module._git
    monkeypatch.setattr(module, "_git", lambda *words: None if words[0] == "status" else known(*words))
    assert [environment(1)[name] for name in ("commit", "modified")] == [commit, None]


def test_a_repository_the_package_was_merely_installed_into_does_not_lend_its_commit(tmp_path, monkeypatch):
    (tmp_path / "thesis.txt").touch()
    git(tmp_path, "init")
    git(tmp_path, "add", "thesis.txt")
    git(tmp_path, "commit", "-m", "first")
    installed = tmp_path / "site-packages" / "records.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.setattr(module, "__file__", str(installed))
    assert [environment(1)[name] for name in ("commit", "modified")] == [None, False]


def test_without_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert [environment(1)[name] for name in ("commit", "modified")] == [None, False]


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    known = importlib.metadata.version

    def without_numba(name: str) -> str:
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", without_numba)
    assert environment(1)["versions"].keys() == {"curlicue", "torch", "numpy", "scikit-learn", "safetensors"}


def test_the_latest_environment_has_every_change_that_resuming_brought():
    began = {"threads": 1, "commit": "a", "resumed": [{"t": 5, "commit": "b"}, {"t": 9, "commit": "c", "cores": 2}]}
    assert {name: latest(began)[name] for name in ("threads", "commit", "cores")} == {
        "threads": 1,
        "commit": "c",
        "cores": 2,
    }
