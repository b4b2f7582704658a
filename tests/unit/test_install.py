# SPDX-License-Identifier: Apache-2.0
"""make install: everything works from the place it was given, and nothing there names another one.

make uninstall: nothing of ours is left, nothing of others' gone, and nothing that still needs it breaks.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from node_testbed import ROOT, Node, job_environment

DEFAULT = b"/usr/lib/hami-hpc", b"/usr/libexec/hami-hpc", b"/usr/share/hami-hpc"
# The rest of what pip fetches for accounting is not what is tested here.
PIP = f"--no-deps {ROOT}"
PLUGSTACK = "etc/slurm/plugstack.conf"
# What stands on a machine beside an installation: Slurm's own, the site's settings and filter, accounting's data.
OTHERS = {
    "etc/slurm/slurm.conf": "ClusterName=site\nJobSubmitPlugins=lua\nGresTypes=gpu,shard\n# vgpu\n",
    "etc/slurm/cli_filter.lua": "-- the site's own\n",
    PLUGSTACK: "include plugstack.conf.d/*.conf\n",
    "etc/hami-hpc/hami-hpc.toml": "version = 1\n",
    "etc/hami-hpc/rates.toml": "version = 1\n",
    "var/lib/hami-hpc/usage/7.json": "{}",
    "var/lib/hami-hpc/accounting/manifest.json": "{}",
    "usr/lib/plugins/gres_gpu.so": "Slurm's",
    "usr/bin/sbatch": "Slurm's",
}
WITH_OTHERS = {"PLUGINDIR": "/usr/lib/plugins"}


@dataclass(frozen=True)
class Installation:
    """`prefix` on this machine; `printed` by a second make install over the first.

    `epilogs` are what the installed epilog said of settings that do not exist, over and over during that second one.
    """

    prefix: Path
    printed: str
    epilogs: list[str]

    def file(self, name: str) -> Path:
        return self.prefix / name

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def make_install(pip: str = PIP, **places: str) -> str:
    command = ["make", "install", f"PIP_INSTALL={pip}", *(f"{name}={value}" for name, value in places.items())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def seed_venv(venv: Path, packages: Path | None = None) -> None:
    """The installation's venv beforehand, with this checkout's Python packages, or those given, in reach."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = packages or next(Path(sys.prefix).glob("lib/python3*/site-packages"))
    own = next(venv.glob("lib/python3*/site-packages"))
    (own / "checkout.pth").write_text(f"{packages}\n")


def run_epilogs(prefix: Path, said: list[str], until: threading.Event) -> None:
    command = (str(prefix / "libexec/hami-hpc/epilog"), "--config", "/nonexistent/hami-hpc.toml")
    while not until.is_set():
        done = subprocess.run(command, env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False)
        said.append(done.stderr)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("install")
    prefix = base / "opt"
    seed_venv(prefix / "lib/hami-hpc/venv")
    places = {"PREFIX": str(prefix), "SYSCONFDIR": str(base / "etc"), "PLUGINDIR": str(prefix / "slurm")}
    try:
        make_install(**places)
        (base / "etc/slurm/cli_filter.lua").write_text("-- the site's own\n")
        epilogs: list[str] = []
        is_installed = threading.Event()
        runner = threading.Thread(target=run_epilogs, args=(prefix, epilogs, is_installed))
        runner.start()
        try:
            printed = make_install(**places)
        finally:
            is_installed.set()
            runner.join()
        yield Installation(prefix, printed, epilogs)
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


def test_stages_that_start_while_hami_hpc_is_installed_again_are_whole(installation: Installation) -> None:
    """Each ran with all of the old modules or all of the new ones, and said what it says of missing settings."""
    assert len(installation.epilogs) > 20
    texts = set(installation.epilogs)
    assert len(texts) == 1, texts
    assert "/nonexistent/hami-hpc.toml cannot be read" in texts.pop()


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


def uninstall(places: dict[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "uninstall", *(f"{name}={value}" for name, value in places.items())]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pip installs of this checkout, built once."""
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return f"--no-deps --no-index {built}"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A DESTDIR with others' files; job_submit is Slurm's own until hami_hpc is installed."""
    for name, text in OTHERS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_install_brings_uninstall_takes_away_and_nothing_else_twice(machine: Path, wheel: str) -> None:
    places = {"DESTDIR": str(machine), **WITH_OTHERS}
    conf = machine / "etc/slurm/slurm.conf"
    without_lua = conf.read_text().replace("JobSubmitPlugins=lua\n", "")
    conf.write_text(without_lua)
    before = files(machine)
    for _ in range(2):
        seed_venv(machine / "usr/lib/hami-hpc/venv")
        stale = machine / "usr/share/hami-hpc/template-of-before"
        stale.parent.mkdir(parents=True)
        stale.write_text("ours")
        line = f"{hashlib.sha256(b'ours').hexdigest()}  /usr/share/hami-hpc/{stale.name}\n"
        (machine / "usr/lib/hami-hpc/manifest").write_text(line)
        make_install(wheel, **places)
        installed = set(files(machine)) - set(before)
        assert not stale.exists()
        assert {"usr/lib/plugins/spank_hami_hpc.so", "etc/slurm/job_submit.lua", "usr/bin/hami-hpc"} <= installed
        assert "etc/hami-hpc/hami-hpc.toml.example" in installed
        done = uninstall(places)
        assert (done.returncode, done.stderr) == (0, "")
        assert files(machine) == before
        assert not list((machine / "usr").rglob("*hami*"))
    again = uninstall(places)
    assert (again.returncode, files(machine)) == (0, before)
    assert "nothing is installed" in again.stdout


def test_nothing_is_removed_while_slurms_or_systemds_files_name_it_and_what_was_changed_stays(
    machine: Path, wheel: str
) -> None:
    places = {"DESTDIR": str(machine), **WITH_OTHERS}
    seed_venv(machine / "usr/lib/hami-hpc/venv")
    make_install(wheel, **places)
    fragment = machine / "etc/slurm/plugstack.conf.d/hami-hpc.conf"
    fragment.parent.mkdir()
    fragment.write_text("# hami_hpc\nrequired spank_hami_hpc.so\n")
    wants = machine / "etc/systemd/system/timers.target.wants"
    wants.mkdir(parents=True)
    (wants / "hami-hpc-ingest.timer").symlink_to("/usr/lib/systemd/system/hami-hpc-ingest.timer")
    edited, beside = machine / "usr/libexec/hami-hpc/ingest", machine / "usr/share/hami-hpc/note"
    edited.write_text("#!/bin/sh\n# the site's own way to fetch\n")
    beside.write_text("the site's")
    before = files(machine)
    done = uninstall(places)
    assert done.returncode != 0
    assert files(machine) == before
    for line in (
        f"{machine}/etc/slurm/slurm.conf:2:JobSubmitPlugins=lua",
        f"{fragment}:2:required spank_hami_hpc.so",
        str(wants / "hami-hpc-ingest.timer"),
    ):
        assert line in done.stderr.splitlines()
    assert not any("slurm.conf:3" in line or "slurm.conf:4" in line for line in done.stderr.splitlines())

    done = uninstall({**places, "FORCE": "1"})
    assert done.returncode == 0
    assert f"kept {edited}: it was changed" in done.stdout
    kept = {str(path.relative_to(machine)): path.read_bytes() for path in (edited, beside, fragment)}
    assert files(machine) == {**{name: text.encode() for name, text in OTHERS.items()}, **kept}


def test_nothing_is_removed_while_vgpu_jobs_run_on_the_node(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    library = tmp_path / "lib/hami-hpc"
    seed_venv(library / "venv")
    (pth,) = library.rglob("checkout.pth")
    pth.write_text(f"{ROOT}\n")
    (library / "libhami-hpc.so").write_text("ours")
    digest = hashlib.sha256(b"ours").hexdigest()
    (library / "manifest").write_text(f"{digest}  {library}/libhami-hpc.so\n")
    places = {"LIBDIR": str(library), "SYSCONFDIR": str(tmp_path / "etc")}
    assert node.prolog(7) == 0
    before = files(library)
    done = uninstall(places, HAMI_HPC_CONFIG=str(node.config))
    assert done.returncode != 0
    assert done.stderr.splitlines()[:2] == [
        "vgpu jobs run on this node. Drain it (scontrol update nodename=... state=drain) and wait for:",
        "7",
    ]
    assert files(library) == before
    assert node.epilog(7) == 0

    pth.write_text("/nowhere\n")
    done = uninstall(places, HAMI_HPC_CONFIG=str(node.config))
    assert "(unknown: the settings cannot be read)" in done.stderr
    assert done.returncode != 0
    pth.write_text(f"{ROOT}\n")

    done = uninstall(places, HAMI_HPC_CONFIG=str(node.config))
    assert (done.returncode, done.stderr) == (0, "")
    assert not library.exists()
    assert (node.root / "state/usage/7.json").exists()


@pytest.mark.parametrize(
    "places",
    [{"DESTDIR": "relative"}, {"PREFIX": "relative"}, {"PREFIX": "/a|b"}, {"LIBDIR": "/a b"}, {"PLUGINDIR": "/a&b"}],
)
def test_a_place_that_no_file_could_name_is_refused_before_anything_is_built(places: dict[str, str]) -> None:
    command = ["make", "install", *(f"{name}={value}" for name, value in places.items())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("install: ")
    assert done.stdout == ""


def test_an_installation_that_was_stopped_is_finished_by_the_next_whatever_the_umask(tmp_path: Path) -> None:
    """DESTDIR holds blanks; the venv of the run before has no pip and no package; half-written files are there."""
    root = tmp_path / "a package"
    lib = root / "opt/x/lib/hami-hpc"
    lib.parent.mkdir(parents=True)
    (tmp_path / "packages").mkdir()
    for package in next(Path(sys.prefix).glob("lib/python3*/site-packages")).iterdir():
        if not package.name.startswith(("pip", "__editable__")):
            (tmp_path / "packages" / package.name).symlink_to(package)
    before = os.umask(0o077)
    try:
        seed_venv(lib / "venv", tmp_path / "packages")
        (lib / "lua").mkdir()
        (lib / "lua/hami_hpc.lua.new.123").write_text("half")
        (lib / "libhami-hpc.so.new").write_text("half")
        make_install(PREFIX="/opt/x", DESTDIR=str(root), PLUGINDIR="/opt/x/slurm", LIBEXECDIR="/opt/x/stages")
    finally:
        os.umask(before)
        subprocess.run(["make", "plugins"], cwd=ROOT, check=True, capture_output=True)
    assert sorted(path.name for path in (root / "opt/x/slurm").iterdir()) == [
        "gres_vgpu.so",
        "gres_vgpu_cores.so",
        "gres_vgpu_mem.so",
        "gres_vgpu_slo.so",
        "spank_hami_hpc.so",
    ]
    header = root / "opt/x/include/hami_hpc.h"
    program = tmp_path / "service.c"
    program.write_text(
        "#include <hami_hpc.h>\nint main(void) { return hami_hint_begin(0) + hami_hint_end() != -2 * ENOSYS; }\n"
    )
    options = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{header.parent}"]
    for compiler in (["gcc", *options], ["g++", *options[1:]]):
        command = [*compiler, str(program), "-o", str(tmp_path / "service"), "-ldl"]
        subprocess.run(command, check=True)
        subprocess.run([str(tmp_path / "service")], check=True)
    alone = ["/usr/bin/env", "-i", f"PYTHONPATH={root}/opt/x/share/hami-hpc/python", sys.executable, "-S", "-c"]
    subprocess.run([*alone, "from hami_hpc.hints import request\nwith request(10): pass"], check=True)
    closed = [path for path in root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o044 != 0o044]
    assert closed == []
    assert not (lib / "libhami-hpc.so.new").exists()
    python = str(lib / "venv/bin/python3")
    code = "import hami_hpc.installed as i; print(i.STAGE_DIR, i.LIB_DIR)"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "/opt/x/stages /opt/x/lib/hami-hpc\n"
