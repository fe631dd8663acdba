"""The sdist and the wheel: built as for a release, installed into an empty folder, and run from there."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from attnviz.version import __version__

ROOT = Path(__file__).resolve().parents[2]
NAME = f"attnviz-{__version__}"


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
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


@pytest.mark.thorough
def test_the_sdist_has_all_that_ci_needs(sdist: Path):
    assert package_files(sdist) == package_files(ROOT)
    for name in ("README.md", "LICENSE", "pyproject.toml", ".ci/run", ".ci/constraints.txt", "examples/tour.ipynb"):
        assert (sdist / name).is_file(), name
    assert len(list((sdist / "tests").rglob("test_*.py"))) == len(list((ROOT / "tests").rglob("test_*.py")))


def needed(names: list[str], found: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """Installed packages, by name, that these requirements lead to."""
    for each in map(Requirement, names):
        extras = ["", *each.extras]
        if each.name not in found and (each.marker is None or any(each.marker.evaluate({"extra": x}) for x in extras)):
            found[each.name] = metadata.distribution(each.name)
            needed(found[each.name].requires or [], found)
    return found


def clean_environment(folder: Path) -> Path:
    """A new virtual environment with nothing but links to what attnviz asks for; returns its folder of programs."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    for package in needed(asked, {}).values():
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))
    return folder / "bin"


@pytest.mark.thorough
def test_the_wheel_of_the_sdist_is_installed_with_what_it_asks_for_alone_and_runs_from_an_empty_folder(
    sdist: Path, tmp_path: Path
):
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=sdist)
    wheel = tmp_path / f"{NAME}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if not name.startswith(f"{NAME}.dist-info/")} == package_files(ROOT)
    programs = clean_environment(tmp_path / "clean")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", programs / "python"]
    run(*pip, "install", "--no-index", "--no-compile", wheel, cwd=tmp_path)  # which refuses what is not there
    empty = tmp_path / "empty"
    empty.mkdir()
    code = "import attnviz, importlib.util as util; print(attnviz.__file__, util.find_spec('pytest'), sep='\\n')"
    file, of_tests = run(programs / "python", "-c", code, cwd=empty).split()
    assert Path(file).is_relative_to(tmp_path / "clean")
    assert of_tests == "None"
    assert run(programs / "attnviz", "--version", cwd=empty) == f"attnviz {__version__}\n"
    printed = run(programs / "attnviz", "heads", "one two one two", "-m", "tiny-gpt2", "--figures", "page", cwd=empty)
    assert "Checked: all 16 heads" in printed
    assert len([*empty.rglob("heads.html")]) == 1


def test_who_cites_and_who_reports_finds_what_is_true():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (cited["title"].partition(":")[0], cited["version"]) == ("attnviz", __version__)
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "not-verified.yml").read_text("utf-8"))
    assert "attnviz models NAME --verify" in str(form["body"])
    assert {each["type"] for each in form["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_the_version_stands_in_one_place():
    holders = [path for path in (ROOT / "attnviz").rglob("*.py") if f'"{__version__}"' in path.read_text("utf-8")]
    assert holders == [ROOT / "attnviz" / "version.py"]
    assert __version__ not in (ROOT / "pyproject.toml").read_text("utf-8")
