# SPDX-License-Identifier: Apache-2.0
"""make install: everything works from the place it was given, and nothing there names another one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from node_testbed import ROOT, Node, job_environment

DEFAULT = b"/usr/lib/hami-hpc", b"/usr/libexec/hami-hpc", b"/usr/share/hami-hpc"
# The rest of what pip fetches for accounting is not what is tested here.
PIP = f"--no-deps {ROOT}"


@dataclass(frozen=True)
class Installation:
    """`prefix` on this machine; `printed` by a second make install over the first."""

    prefix: Path
    printed: str

    def file(self, name: str) -> Path:
        return self.prefix / name

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def make_install(**places: str) -> str:
    command = ["make", "install", f"PIP_INSTALL={PIP}", *(f"{name}={value}" for name, value in places.items())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def seed_venv(venv: Path) -> None:
    """The installation's venv beforehand, with this checkout's Python packages in reach."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next(Path(sys.prefix).glob("lib/python3*/site-packages"))
    own = next(venv.glob("lib/python3*/site-packages"))
    (own / "checkout.pth").write_text(f"{packages}\n")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("install")
    prefix = base / "opt"
    seed_venv(prefix / "lib/hami-hpc/venv")
    places = {"PREFIX": str(prefix), "SYSCONFDIR": str(base / "etc"), "PLUGINDIR": str(prefix / "slurm")}
    try:
        make_install(**places)
        (base / "etc/slurm/cli_filter.lua").write_text("-- the site's own\n")
        yield Installation(prefix, make_install(**places))
    finally:
        subprocess.run(["make", "plugins"], cwd=ROOT, check=True, capture_output=True)  # as the other tests know them


def named_elsewhere(folder: Path) -> list[str]:
    """The files below `folder` that name a default place. Those of other packages are none of ours."""
    ours = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    ours = [path for path in ours if "site-packages" not in path.parts or "hami_hpc" in path.parts]
    return [str(path) for path in ours if any(name in path.read_bytes() for name in DEFAULT)]


def test_nothing_installed_names_a_place_below_usr(installation: Installation) -> None:
    assert named_elsewhere(installation.prefix) == []
    assert installation.file("slurm/spank_hami_hpc.so").read_bytes().count(f"{installation.prefix}/lib/".encode()) == 1
    filters = installation.prefix.parent / "etc/slurm"
    assert f'"{installation.prefix}/lib/hami-hpc/lua/"' in (filters / "job_submit.lua").read_text()


def test_the_command_runs_from_there_and_knows_its_build(installation: Installation) -> None:
    hami = str(installation.file("bin/hami-hpc"))
    built = subprocess.run([ROOT / "scripts/build-info"], capture_output=True, text=True, check=True).stdout.strip()
    done = installation.run(hami, "--version", PATH="/nowhere")
    assert done.stdout == f"hami-hpc, version {built}\n", done.stderr
    python = str(installation.file("lib/hami-hpc/venv/bin/python3"))
    where = installation.run(python, "-I", "-c", "import hami_hpc; print(hami_hpc.__file__)").stdout
    assert where.startswith(str(installation.prefix))


def test_prolog_epilog_and_render_work_from_there(installation: Installation, tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    etc = tmp_path / "etc"
    hami = str(installation.file("bin/hami-hpc"))
    done = installation.run(hami, "render", "--config", str(node.config), "--gpus", "h200:2", "-o", str(etc))
    assert done.returncode == 0, done.stderr
    assert named_elsewhere(etc) == []
    line = (etc / "plugstack.conf.d/hami-hpc.conf").read_text()
    assert f"interposer={installation.prefix}/lib/hami-hpc/libhami-hpc.so" in line
    for stage in ("prolog", "epilog"):
        wrapper = etc / f"hami-hpc-{stage}"
        assert f"exec '{installation.prefix}/libexec/hami-hpc/{stage}'" in wrapper.read_text()
        ran = installation.run(str(wrapper), **job_environment(7))
        assert (ran.returncode, ran.stderr) == (0, "")
        assert (7 in node.grants()) == (stage == "prolog")


def test_the_filters_find_their_parts_from_there(installation: Installation) -> None:
    script = installation.prefix.parent / "etc/slurm/job_submit.lua"
    code = f"slurm = {{ SUCCESS = 0 }} dofile('{script}') print(type(slurm_job_submit))"
    done = installation.run("lua5.1", "-e", code, PATH="/usr/bin:/bin")
    assert done.stdout == "function\n", done.stderr


def test_installing_again_keeps_the_sites_own_filters(installation: Installation) -> None:
    own = installation.prefix.parent / "etc/slurm/cli_filter.lua"
    assert own.read_text() == "-- the site's own\n"
    assert f"kept {own}" in installation.printed
    assert not list(installation.prefix.rglob("*.new*")), "nothing half-written is left"


def test_man_pages_and_completion_lie_where_man_and_shells_look(installation: Installation) -> None:
    share = installation.file("share")
    built = subprocess.run([ROOT / "scripts/build-info"], capture_output=True, text=True, check=True).stdout.strip()
    page = (share / "man/man1/hami-hpc-doctor.1").read_text()
    assert page.startswith(f'.TH "HAMI\\-HPC\\-DOCTOR" "1" "" "hami-hpc {built}"')
    script = share / "bash-completion/completions/hami-hpc"
    words = 'COMP_WORDS=(hami-hpc doctor --format ""); COMP_CWORD=3; _hami_hpc_completion hami-hpc'
    code = f'. {script}; {words}; echo "${{COMPREPLY[@]}}"'
    done = installation.run("bash", "--norc", "-c", code, PATH=f"{installation.prefix}/bin:/usr/bin:/bin")
    assert (done.stdout, done.stderr) == ("text json\n", "")
    assert (share / "zsh/site-functions/_hami-hpc").exists()
    assert (share / "fish/vendor_completions.d/hami-hpc.fish").exists()


def test_destdir_goes_before_every_place_and_into_no_file(installation: Installation, tmp_path: Path) -> None:
    seed_venv(tmp_path / "opt/x/lib/hami-hpc/venv")
    make_install(PREFIX="/opt/x", DESTDIR=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["etc", "opt", "usr"], (
        "usr holds Slurm's plugin directory alone"
    )
    assert [path.name for path in (tmp_path / "usr/lib").iterdir() if "hami" in path.name] == []
    assert named_elsewhere(tmp_path) == []
    assert (tmp_path / "opt/x/share/man/man1/hami-hpc.1").exists()
    assert (tmp_path / "opt/x/share/zsh/site-functions/_hami-hpc").exists()
    launcher = (tmp_path / "opt/x/bin/hami-hpc").read_text()
    assert launcher == '#!/bin/sh\nexec /opt/x/lib/hami-hpc/venv/bin/python3 -I -m hami_hpc.cli "$@"\n'
    stages = [tmp_path / "opt/x/libexec/hami-hpc" / name for name in ("python.sh", "ingest", "prolog")]
    assert not any(str(tmp_path) in path.read_text() for path in stages)
