"""What the shell offers after TAB."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import COMMAND, Done, Make, Run


@pytest.fixture
def tab(run: Run, monkeypatch: pytest.MonkeyPatch, work_dir: Path) -> object:
    """Give a function that completes a line as one of the shells asks for it."""

    def tab_(shell: str, line: str) -> Done:
        monkeypatch.setenv("_KIMI_SESSIONS_COMPLETE", f"complete_{shell}")
        monkeypatch.chdir(work_dir)
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        return run("-w", "unused")

    return tab_


def test_ids_are_offered_with_their_titles(tab: object, make: Make) -> None:
    """Those that begin as typed; bash has no room for titles."""
    assert callable(tab)
    one, two = make("One", session_id="ab-1"), make("Two", session_id="ab-2")
    make("Other", session_id="cd")
    assert tab("bash", "kimi-sessions show ab").out.split() == [one.id, two.id]
    assert tab("fish", "kimi-sessions show ab").out.splitlines() == ["ab-1\tOne", "ab-2\tTwo"]
    assert (
        tab("zsh", "kimi-sessions show ab").out.strip() == '_arguments \'*: :(("ab-1":"One"\n"ab-2":"Two"))\''
    )
    assert "@last" in tab("bash", "kimi-sessions delete ").out.split()
    assert tab("bash", "kimi-sessions rename ab-1 ").out.strip() == ""


def test_commands_are_offered_by_their_beginning(tab: object) -> None:
    """With their line of help where the shell shows it."""
    assert callable(tab)
    assert tab("bash", "kimi-sessions arch").out.split() == ["archive"]
    assert tab("fish", "kimi-sessions tras").out.startswith("trash\t")


def test_options_that_stand_before_say_where_to_look(
    tab: object, make: Make, tmp_path: Path, work_dir: Path
) -> None:
    """-w and --share-dir are read from the line that is being typed."""
    assert callable(tab)
    make("One", session_id="ab-1")
    assert tab("bash", f"kimi-sessions -w {tmp_path} show a").out.strip() == ""
    assert tab("bash", f"kimi-sessions --work-dir {work_dir} show a").out.split() == ["ab-1"]
    assert tab("bash", f"kimi-sessions --share-dir {tmp_path}/none show a").out.strip() == ""


def test_options_are_offered_by_the_parser(tab: object) -> None:
    """It knows them all."""
    assert callable(tab)
    assert "--archived" in tab("bash", "kimi-sessions list --a").out.split()


def test_nothing_from_a_store_reaches_the_shell_as_code(tab: object, make: Make, tmp_path: Path) -> None:
    """Some shells evaluate what they are offered: titles lose every sign that means something to them."""
    assert callable(tab)
    session = make("prompt", session_id="ab-1")
    evil = '\\$(touch /tmp/owned) `id` \'; "x" :(*) \\'
    (session.path / "state.json").write_text(json.dumps({"custom_title": evil}), "utf-8")
    shutil.copytree(session.path, session.path.with_name("ab-$(id)"))
    for shell in ("zsh", "fish", "bash"):
        offered = tab(shell, "kimi-sessions show ab").out
        assert "ab-1" in offered
        assert not set("\\$`;*&|<>") & set(offered.replace("_arguments '*: :((", ""))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_the_shell_is_printed(shell: str, home: Path, bare_ground: Path) -> None:
    """What --install-completion installs, for those who install things themselves."""
    done = subprocess.run(
        [COMMAND],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "_KIMI_SESSIONS_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_KIMI_SESSIONS_COMPLETE" in done.stdout
