"""`.ci/run` goes on without a browser where none can be installed, and says why; only CI installs one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "install-browser"
NEEDED = ("sh", "mktemp", "rm", "tail", "timeout", "touch")

pytestmark = pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason=f"not all of {NEEDED} are here")


def ran(tmp_path: Path, ci: str, **programs: str) -> str:
    """What the script says where these are all the programs there are."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in NEEDED:
        (bin_ / name).symlink_to(str(shutil.which(name)))
    for name, body in programs.items():
        program = bin_ / name.replace("_", "-")
        program.write_text(f"#!{shutil.which('sh')}\n{body}\n")
        program.chmod(0o755)
    done = subprocess.run(
        ["sh", SCRIPT], env={"PATH": str(bin_), "CI": ci}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_browser_that_is_there_is_kept(tmp_path: Path) -> None:
    made = tmp_path / "installed"
    assert ran(tmp_path, "true", chromium="exit 0", apt_get=f"touch {made}", id="echo 0") == ""
    assert not made.exists()


def test_ci_installs_one(tmp_path: Path) -> None:
    made = tmp_path / "installed"
    assert ran(tmp_path, "true", apt_get=f'case "$*" in *chromium*) touch {made};; esac', id="echo 0") == ""
    assert made.exists()


@pytest.mark.parametrize(
    ("ci", "programs", "why"),
    [
        ("", {"apt_get": "exit 0", "id": "echo 0"}, "this is not CI"),
        ("true", {"apt_get": "exit 0", "id": "echo 1000"}, "as root"),
        ("true", {"id": "echo 0"}, "apt-get"),
        ("true", {"apt_get": "echo 'E: no such package' >&2; exit 100", "id": "echo 0"}, "E: no such package"),
    ],
)
def test_why_it_is_skipped(tmp_path: Path, ci: str, programs: dict[str, str], why: str) -> None:
    said = ran(tmp_path, ci, **programs)
    assert said.startswith("SKIPPED: tests in a browser") and why in said
