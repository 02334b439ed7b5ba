"""The package installs, and works, where there is no compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory):
    """A copy of the package, built with compilers that always fail."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--target", str(site), str(ROOT)],
        env={**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}, check=True,
        capture_output=True,
    )  # fmt: skip

    def run(*arguments):
        launcher = [sys.executable, str(ROOT / "scripts" / "with_package.py"), str(site)]
        environment = {k: v for k, v in os.environ.items() if k != "MITHRIDATE_KERNELS"}
        return subprocess.run(
            [*launcher, "-m", "mithridate", *arguments], capture_output=True, text=True, cwd=site,
            env={**environment, **run.environment},
        )  # fmt: skip

    run.environment = {}
    return run


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


def test_doctor_says_when_the_reference_is_forced(cli):
    _, stdout, _ = cli("doctor", "--json", env={**os.environ, "MITHRIDATE_KERNELS": "reference"})
    found = json.loads(stdout)
    assert found["native_kernels"] is False
    assert found["native_description"] == "no (MITHRIDATE_KERNELS=reference)"
