"""What would be released: the wheel, the sdist, the page on PyPI, and the README's commands where it is installed.

The empty environment has a folder of links to the packages that seewhen itself needs (and no others), taken from
the environment of the tests: torch is two gigabytes, and to install it again would test the registry.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import seewhen

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 60 * 10**6
pytestmark = pytest.mark.slow


def run(*command: object, where: Path = ROOT, code: int = 0, **environment: str) -> str:
    """What a command says, stderr included, with nothing of this process's Python in its environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SEEWHEN", "VIRTUAL"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=where,
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The wheel, the sdist, and the wheel that the sdist builds."""
    folder = tmp_path_factory.mktemp("built")
    venv.create(folder / "tools", with_pip=True)
    python = folder / "tools/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_build_requirements())
    run(python, "-m", "hatchling", "build", "-d", folder / "dist", "-t", "sdist", "-t", "wheel")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(python, "-m", "hatchling", "build", "-d", folder / "again", "-t", "wheel", where=source)
    (wheel,), (again,) = (folder / "dist").glob("*.whl"), (folder / "again").glob("*.whl")
    return wheel, sdist, again


def _build_requirements() -> list[str]:
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]


def test_the_sdist_builds_the_same_wheel(built: tuple[Path, Path, Path]) -> None:
    wheel, sdist, again = built
    assert wheel.name.startswith(f"seewhen-{seewhen.__version__}-")
    assert wheel.stat().st_size < MOST_BYTES and sdist.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert one.namelist() == other.namelist()
        assert all(one.read(name) == other.read(name) for name in one.namelist())
        assert {"seewhen/py.typed", "seewhen/methods/catalogue.json"} <= set(one.namelist())
    with tarfile.open(sdist) as packed:
        folders = {Path(name).parts[1] for name in packed.getnames() if len(Path(name).parts) > 2}
    assert folders == {"src", "docs", "hub"}


def test_links_and_pictures_of_the_readme_work_on_pypi(built: tuple[Path, Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        head, _, page = wheel.read(name).decode().partition("\n\n")
    home = re.search(r"^Project-URL: Homepage, (\S+)$", head, re.M)
    assert home and "Description-Content-Type: text/markdown" in head
    raw = home[1].replace("//github.com", "//raw.githubusercontent.com")
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert targets and all(target.startswith("https://") for target in targets)
    ours = [t for t in targets if t.startswith((f"{home[1]}/blob/main/", f"{raw}/main/"))]
    paths = [re.sub(r"^.*?/main/", "", target) for target in ours]
    assert len(paths) >= 10 and all((ROOT / path).exists() for path in paths)
    assert any(path.endswith(".webp") for path in paths)


# What the command line needs until a model is loaded; torch has its own tests for every Python.
_LIGHT = (
    "typer",
    "rich",
    "pydantic",
    "annotated-types",
    "platformdirs",
    "filelock",
    "huggingface_hub",
    "numpy",
    "pillow",
)


@pytest.mark.parametrize("minor", [12, 13, 14])
def test_newer_pythons_read_every_file_and_run_what_needs_no_model(
    built: tuple[Path, Path, Path], minor: int, tmp_path: Path
) -> None:
    python = _interpreter(minor)
    if python is None:
        pytest.skip(f"there is no python3.{minor} here")
    run(python, "-m", "venv", tmp_path / "env")
    programs = tmp_path / "env/bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--only-binary=:all:", "--constraint", ROOT / "constraints.txt", *_LIGHT)
    run(*pip, "--no-deps", built[0])
    (package,) = (tmp_path / "env/lib").glob("python*/site-packages/seewhen")
    run(programs / "python", "-W", "error", "-m", "compileall", "-q", "-f", package)
    for command in ("--version", "--help", "methods", "methods cai", "eval --help"):
        run(programs / "seewhen", *command.split(), where=tmp_path)
    for command in ("eval pope --method cai:bogus=1", "describe nowhere.png", "eval bogus"):
        assert run(programs / "seewhen", *command.split(), where=tmp_path, code=2).startswith("error: ")


def _interpreter(minor: int) -> str | None:
    """On the path, or one of pyenv's."""
    found = sorted((Path.home() / ".pyenv/versions").glob(f"3.{minor}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python3.{minor}")


# -- an empty environment ----------------------------------------------------------------------------------


def closure(extra: str = "") -> dict[str, Distribution]:
    """What pip would install for seewhen (with an extra), as far as it is here."""
    found: dict[str, Distribution] = {}
    todo = [("seewhen", extra)]
    while todo:
        name, wanted = todo.pop()
        dist = _here(name)
        if dist is None:  # for another system
            continue
        for text in dist.requires or []:
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": wanted}):
                continue
            key = canonicalize_name(need.name)
            if key not in found and key != "seewhen":
                here = _here(key)
                if here is not None:
                    found[key] = here
                todo += [(key, one) for one in (need.extras or {""})]
    return found


def _here(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def link(packages: dict[str, Distribution], into: Path) -> None:
    """Everything those packages have at the top of their own environment."""
    for dist in packages.values():
        for top in {Path(str(file)).parts[0] for file in dist.files or []}:
            source, target = Path(str(dist.locate_file(top))), into / top
            if top not in ("..", "__pycache__") and source.exists() and not target.exists():
                target.symlink_to(source)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel in an environment with what it needs: its folder of programs, and where packages are linked."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", with_pip=True)
    linked = folder / "linked"
    linked.mkdir()
    link(closure(), linked)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "linked.pth").write_text(f"{linked}\n")
    programs = folder / "env/bin"
    said = run(programs / "python", "-m", "pip", "install", "--disable-pip-version-check", built[0])
    assert "Successfully installed seewhen-" in said, said
    return programs, linked


def commands() -> list[str]:
    """Every `seewhen ...` in a shell block of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("seewhen ")]


# What stands for a model, a folder or a picture of the reader's; and less of what takes long.
_STANDS_FOR = {
    "llava-hf/llava-1.5-7b-hf": "packaged",
    "shape:llava-1.5-7b": "packaged --tokens 4 --repeats 1 --method regular,cai",
    "demo/cat.jpg": "photo.jpg",  # without the language model for photographs the demonstration draws a scene
    "MODEL photos/": "packaged photos/ --methods confirm -n 8 --no-open",
    "MODEL --scenes 100": "packaged --scenes 5 --max-new-tokens 24",
    "--data DIR --model MODEL": "--model packaged --scenes 2 --split test --out runs",
    "MODEL": "packaged",
    "--methods regular,cai,pai,vcd": "--methods regular,cai,pai,vcd -n 8",
}


def test_every_command_of_the_readme_runs_where_it_is_installed(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    programs, linked = installed
    assert run(programs / "seewhen", "--version", where=tmp_path).startswith("seewhen ")
    assert run(programs / "python", "-m", "seewhen", "--version", where=tmp_path).startswith("seewhen ")
    refused = run(programs / "seewhen", "serve", where=tmp_path, code=2)
    assert "pip install 'seewhen[serve]'" in refused
    told = run(programs / "seewhen", "doctor", where=tmp_path)
    assert "extra serve" in told and "pip install 'seewhen[figures]'" in told
    link(closure("serve"), linked)
    _prepare(tmp_path, programs)
    todo = commands()
    assert len(todo) > 10
    # A run is viewed after it was made.
    for line in sorted(todo, key=lambda line: line.startswith("seewhen view")):
        for old, new in _STANDS_FOR.items():
            line = line.replace(old, new)
        words = shlex.split(line)
        if words[1] == "view":
            words[2:] = [str(next((tmp_path / "runs").iterdir())), "--no-open", "--limit", "1"]
        if words[1] == "serve":
            _served(programs, tmp_path)
        else:
            run(programs / "seewhen", *words[1:], where=tmp_path)
    assert (tmp_path / "page.html").exists() and (tmp_path / "demo").is_dir()


def _prepare(folder: Path, programs: Path) -> None:
    """The reader's files: a picture, captions, objects."""
    drawn = "from seewhen.scenes import render, sample; picture = render(sample('shifted', 3)); "
    run(programs / "python", "-c", drawn + "picture.save('photo.jpg'); picture.save('scene.png')", where=folder)
    (folder / "photos").mkdir()
    (folder / "photos" / "one.png").write_bytes((folder / "scene.png").read_bytes())
    (folder / "captions.jsonl").write_text(json.dumps({"image_id": 1, "caption": "A dog and a cat."}) + "\n")
    objects = {"categories": ["cat", "dog"], "images": {"1": [1]}}
    (folder / "instances_val2014.json").write_text(json.dumps(objects))


def _served(programs: Path, folder: Path) -> None:
    """The server comes up, answers, and ends when told."""
    code = """
import subprocess, sys, urllib.request
server = subprocess.Popen([sys.argv[1], "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
for line in server.stderr:
    if "running on" in line:
        address = line.split("running on ")[1].split()[0]
        print(urllib.request.urlopen(f"{address}/v1/models").read().decode())
        break
server.terminate()
server.communicate()
"""
    assert '"packaged"' in run(sys.executable, "-c", code, programs / "seewhen", where=folder)
