"""
What every test stands on: the trap, a home and a work dir of one's own, old data, and hypothesis profiles.

Without asking for anything, a test runs where no store can be: every location variable leads below a plain
file, so that whoever forgets to say where its data goes fails at the first write, and the current folder is
an empty one that must still be empty afterwards. `home` and `work_dir` open real places instead; `corpus`
gives copies of what released clients wrote (fixtures/README.md).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

CORPUS = Path(__file__).parent.parent / "fixtures" / "corpus"

# Every variable that decides where this library, the old client or platformdirs would put something.
LOCATION_VARIABLES = (
    "HOME",
    "KIMI_SESSIONS_HOME",
    "KIMI_SHARE_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)

# No deadline anywhere: two busy cores say nothing about the code.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "torture", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a path below a plain file: nobody, root included, can make anything of it."""
    wall = tmp_path_factory.mktemp("trap") / "not-a-folder"
    wall.write_bytes(b"a test that wants to write here has forgotten its `home`\n")
    return wall / "nowhere"


@pytest.fixture(scope="session")
def bare_ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the empty folder that tests run in."""
    return tmp_path_factory.mktemp("bare-ground")


@pytest.fixture(autouse=True)
def trap(nowhere: Path, bare_ground: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lead every default location into the void; fail the test that left something in the current folder."""
    for name in LOCATION_VARIABLES:
        monkeypatch.setenv(name, str(nowhere / name.lower()))
    monkeypatch.chdir(bare_ground)
    yield
    litter = sorted(os.listdir(bare_ground))
    for name in litter:
        os.rename(bare_ground / name, bare_ground.with_name(f"litter-{os.urandom(4).hex()}"))
    assert not litter, f"the test wrote into the current folder: {litter}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: None) -> Path:
    """Give a home that exists: HOME and KIMI_SESSIONS_HOME lead into this test's folder, the rest follows."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in LOCATION_VARIABLES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("KIMI_SESSIONS_HOME", str(folder / "kimi-sessions"))
    return folder


@pytest.fixture
def work_dir(tmp_path: Path, home: Path) -> Path:
    """Give an empty project folder, and a home with it."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def corpus(tmp_path: Path, home: Path) -> Callable[[str], Path]:
    """
    Give a function from a client's version to a copy of the share dir it wrote, which may be changed.

    Modification times are the recorded ones. A second call with one version gives a second copy.
    """

    def copy_share(version: str) -> Path:
        share = tmp_path / f"share-{version}"
        while share.exists():
            share = share.with_name(share.name + "-again")
        shutil.copytree(CORPUS / version / "share", share)
        manifest = json.loads((CORPUS / version / "MANIFEST.json").read_bytes())
        for name, facts in manifest["files"].items():
            os.utime(share / name, ns=(facts["mtime_ns"], facts["mtime_ns"]))
        return share

    return copy_share
