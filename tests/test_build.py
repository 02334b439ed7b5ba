"""The package as an sdist and a wheel: built, installed where nothing else is, and used; also where
there is no compiler."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build(out: Path, **environment: str) -> Path:
    """`python -m build`: an sdist, and a wheel that is made of it. The wheel."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [wheel] = out.glob("*.whl")
    return wheel


def install(wheel: Path, place: Path) -> Path:
    """Into an environment that has nothing else: the interpreter there. What the package depends
    on, and nothing of the repository, is lent to it: hooks of editable installs do not work."""
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    [site] = (place / "lib").glob("python3*/site-packages")
    lent = [p for p in sys.path if p.endswith("site-packages")]
    (site / "lent.pth").write_text("\n".join(lent))
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built with compilers that always fail: without native kernels, and fast."""
    pytest.importorskip("build")
    return build(tmp_path_factory.mktemp("dist"), CC="/bin/false", CXX="/bin/false")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("empty") / "venv")


@pytest.fixture(scope="module")
def without_compiler(installed, tmp_path_factory):
    """run(arguments): the command of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("elsewhere")

    def run(*arguments):
        environment = {k: v for k, v in os.environ.items() if k != "MITHRIDATE_KERNELS"}
        return subprocess.run(
            [installed.parent / "mithridate", *arguments], capture_output=True, text=True,
            cwd=folder, env={**environment, **run.environment},
        )  # fmt: skip

    run.environment = {}
    return run


def test_what_is_installed_is_the_wheel(installed, tmp_path):
    code = (
        "import mithridate, mithridate.cli as cli; print(mithridate.__file__); print(cli.__file__)"
    )
    done = subprocess.run(
        [installed, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert all(str(installed.parent.parent) in line for line in done.stdout.splitlines())


def test_the_version(without_compiler):
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert without_compiler("--version").stdout == f"mithridate {version}\n"


def test_shipped_models_are_in_the_wheel(without_compiler):
    done = without_compiler(
        "evaluate", "bandit", "--agents", "at-dpt-bandit-s0", "--attackers", "swap", "--tasks", "2",
        "--replications", "1", "--set", "threads=1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["records"]) == 1


def test_what_is_in_the_wheel_and_in_the_sdist(wheel):
    """All of the package, nothing beside it, and the zoo within its limit."""
    tracked = subprocess.run(
        ["git", "ls-files", "mithridate"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    if not tracked:
        pytest.skip("needs a clone of the repository")
    there = {name for name in tracked if (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as packed:
        inside = {i.filename: i.compress_size for i in packed.infolist()}
    ours = {name for name in inside if ".dist-info/" not in name}
    assert {n for n in there if not n.endswith((".cpp", ".hpp"))} <= ours
    assert all(name.startswith("mithridate/") for name in ours)
    assert not any(name.endswith((".cpp", ".hpp", ".pyc")) for name in ours)
    zoo = sum(size for name, size in inside.items() if name.startswith("mithridate/zoo/"))
    assert 1e6 < zoo < 30e6, f"the zoo has {zoo / 1e6:.1f} MB in the wheel"
    [sdist] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert there <= names and "CMakeLists.txt" in names
    assert not any(name.startswith(("results/", "docs/", "tests/", ".git/")) for name in names)


def test_types_are_seen_from_outside(installed, tmp_path):
    """`py.typed`: a user's code under mypy --strict, against the wheel."""
    shutil.copy(ROOT / "tests" / "typed" / "uses_mithridate.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed,
         "--cache-dir", ROOT / ".mypy_cache" / "from_outside",
         "uses_mithridate.py"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "MYPYPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_shell_completion(without_compiler):
    without_compiler.environment = {
        "_MITHRIDATE_COMPLETE": "complete_bash", "COMP_WORDS": "mithridate eval", "COMP_CWORD": "1",
    }  # fmt: skip
    done = without_compiler()
    without_compiler.environment = {}
    assert done.stdout.split() == ["evaluate"], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("MITHRIDATE_TEST_BUILD") != "full",
    reason="compiles the kernels, two minutes of a core: MITHRIDATE_TEST_BUILD=full",
)
def test_a_wheel_with_kernels(tmp_path):
    wheel = build(tmp_path / "dist")
    abi = "abi3" if sys.version_info >= (3, 12) else f"cp3{sys.version_info[1]}"
    assert f"-{abi}-" in wheel.name
    python = install(wheel, tmp_path / "venv")
    done = subprocess.run(
        [python.parent / "mithridate", "doctor", "--json"], capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "MITHRIDATE_KERNELS": "native"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["native_kernels"] is True
    assert wheel.stat().st_size < 35e6


def test_a_build_without_a_compiler_works(without_compiler):
    found = json.loads(without_compiler("doctor", "--json").stdout)
    assert found["native_kernels"] is False
    assert "reinstall with a C++ compiler" in found["native_description"]
    done = without_compiler(
        "pretrain", "bandit", "--preset", "smoke", "--json", "--set", "threads=1"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["card"]["metrics"]["clean_tasks"] == 100


def test_asking_for_kernels_that_are_not_there_is_one_line(without_compiler):
    without_compiler.environment = {"MITHRIDATE_KERNELS": "native"}
    done = without_compiler("doctor")
    without_compiler.environment = {}
    assert done.returncode == 2
    assert (
        done.stderr.startswith("error: MITHRIDATE_KERNELS=native") and done.stderr.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MITHRIDATE_KERNELS", "fast", "unknown value of MITHRIDATE_KERNELS 'fast'"),
        ("MITHRIDATE_ISA", "mmx", "unknown MITHRIDATE_ISA on this machine 'mmx'"),
    ],
)
def test_bad_environment_variables_are_one_line(cli, variable, value, message):
    from mithridate.native import kernels

    if variable == "MITHRIDATE_ISA" and kernels() is None:
        pytest.skip("native kernels are not built, or switched off")
    code, _, stderr = cli("doctor", env={**os.environ, variable: value})
    assert code == 2
    assert message in stderr and stderr.count("\n") == 1


def test_doctor_knows_every_extra():
    from mithridate.doctor import EXTRAS

    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert {*EXTRAS, "test"} == set(re.findall(r"^(\w+) = ", section, re.M))


def test_doctor_says_when_the_reference_is_forced(cli):
    _, stdout, _ = cli("doctor", "--json", env={**os.environ, "MITHRIDATE_KERNELS": "reference"})
    found = json.loads(stdout)
    assert found["native_kernels"] is False
    assert found["native_description"] == "no (MITHRIDATE_KERNELS=reference)"
