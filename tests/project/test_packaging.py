"""The sdist and the wheel: built as for a release, installed into an empty folder, and run from there."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from attnviz.version import __version__

ROOT = Path(__file__).resolve().parents[2]
NAME = f"attnviz-{__version__}"


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    env = os.environ if path is None else {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


def package_files(folder: Path) -> set[str]:
    files = (path for path in (folder / "attnviz").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


def test_the_sdist_has_all_that_ci_needs(sdist: Path):
    assert package_files(sdist) == package_files(ROOT)
    for name in ("README.md", "LICENSE", "pyproject.toml", ".ci/run", ".ci/constraints.txt", "examples/tour.ipynb"):
        assert (sdist / name).is_file(), name
    assert len(list((sdist / "tests").rglob("test_*.py"))) == len(list((ROOT / "tests").rglob("test_*.py")))


def test_the_wheel_of_the_sdist_runs_from_an_empty_folder(sdist: Path, tmp_path: Path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=sdist)
    wheel = tmp_path / f"{NAME}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if not name.startswith(f"{NAME}.dist-info/")} == package_files(ROOT)
    site = tmp_path / "site"
    install = ["install", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--target", site]
    run(sys.executable, "-m", "pip", *install, wheel, cwd=tmp_path)
    found = run(sys.executable, "-c", "import attnviz; print(attnviz.__file__)", cwd=tmp_path, path=site)
    assert found.strip() == str(site / "attnviz" / "__init__.py")
    program = site / "bin" / "attnviz"
    assert run(program, "--version", cwd=tmp_path, path=site) == f"attnviz {__version__}\n"
    printed = run(program, "heads", "one two one two", "-m", "tiny-gpt2", "--figures", "none", cwd=tmp_path, path=site)
    assert printed.startswith("On this text")
    assert "\nVerified " in printed


def test_the_version_stands_in_one_place():
    holders = [path for path in (ROOT / "attnviz").rglob("*.py") if f'"{__version__}"' in path.read_text("utf-8")]
    assert holders == [ROOT / "attnviz" / "version.py"]
    assert __version__ not in (ROOT / "pyproject.toml").read_text("utf-8")
