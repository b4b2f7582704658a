# SPDX-License-Identifier: Apache-2.0
"""make install: everything works from the place it was given, and nothing there names another one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from install_testbed import make_install, seed_venv
from node_testbed import ROOT, Node, job_environment

DEFAULT = b"/usr/lib/hami-hpc", b"/usr/libexec/hami-hpc", b"/usr/share/hami-hpc"


@dataclass(frozen=True)
class Installation:
    """`prefix` on this machine, a link; `printed` by a second make install over the first; `before` was its venv until
    then.

    `epilogs` are what the installed epilog said of settings that do not exist, over and over during that second one.
    """

    prefix: Path
    printed: str
    epilogs: list[str]
    before: Path

    def file(self, name: str) -> Path:
        return self.prefix / name

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def run_epilogs(prefix: Path, said: list[str], until: threading.Event) -> None:
    command = (str(prefix / "libexec/hami-hpc/epilog"), "--config", "/nonexistent/hami-hpc.toml")
    while not until.is_set():
        done = subprocess.run(command, env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False)
        said.append(done.stderr)


@pytest.fixture(scope="module", autouse=True)
def _own_plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plugins name LIBDIR: those for a test's own lie in a folder of this file, and others' tests see no change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLUGIN_BUILD", str(tmp_path_factory.mktemp("plugins")))
        yield


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    base = tmp_path_factory.mktemp("install")
    (base / "disk").mkdir()
    prefix = base / "opt"
    prefix.symlink_to("disk")
    seed_venv(prefix / "lib/hami-hpc/venv")
    places = {"PREFIX": str(prefix), "SYSCONFDIR": str(base / "etc"), "PLUGINDIR": str(prefix / "slurm")}
    make_install(**places)
    (base / "etc/slurm/cli_filter.lua").write_text("-- the site's own\n")
    template = base / "etc/hami-hpc/gres-conf/cgroup.conf.j2"
    template.parent.mkdir(parents=True)
    template.write_text("# {{ node }}: the site's own\nConstrainDevices=yes\n")
    epilogs: list[str] = []
    is_installed = threading.Event()
    runner = threading.Thread(target=run_epilogs, args=(prefix, epilogs, is_installed))
    before = (prefix / "lib/hami-hpc/venv").resolve()
    runner.start()
    try:
        printed = make_install(**places)
    finally:
        is_installed.set()
        runner.join()
    return Installation(prefix, printed, epilogs, before)


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


def test_settings_are_read_from_sysconfdir(installation: Installation) -> None:
    etc = installation.prefix.parent / "etc"
    hami = str(installation.file("bin/hami-hpc"))
    shown = {name: "".join(installation.run(hami, *name, "--help").stdout.split()) for name in ((), ("render",))}
    assert f"Settings:{etc}/hami-hpc/hami-hpc.toml," in shown[()]
    assert f"[default:{etc}/slurm]" in shown[("render",)]
    said = installation.run(hami, "inventory").stderr
    assert f"{etc}/hami-hpc/hami-hpc.toml cannot be read" in said
    stage = installation.run(str(installation.file("libexec/hami-hpc/epilog")), SLURM_JOB_ID="7")
    assert f"{etc}/hami-hpc/hami-hpc.toml cannot be read" in stage.stderr
    assert f":-{etc}/hami-hpc/rates.toml" in installation.file("libexec/hami-hpc/month").read_text()
    assert f":-{etc}/hami-hpc/hami-hpc.toml" in installation.file("libexec/hami-hpc/in-use").read_text()
    assert f"HAMI_HPC_CONFIG={etc}/" in installation.file("lib/systemd/system/hami-hpc-agent.service").read_text()


def test_prolog_epilog_and_render_work_from_there(installation: Installation, tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    etc = tmp_path / "etc"
    hami = str(installation.file("bin/hami-hpc"))
    done = installation.run(hami, "render", "--config", str(node.config), "--gpus", "h200:2", "-o", str(etc))
    assert done.returncode == 0, done.stderr
    assert named_elsewhere(etc) == []
    line = (etc / "plugstack.conf.d/hami-hpc.conf").read_text()
    assert f"interposer={installation.prefix}/lib/hami-hpc/libhami-hpc.so" in line
    module = installation.file("lib/hami-hpc/pam_hami_hpc.so")
    assert module.exists()
    assert f"\nsession required {module} run_dir=" in (etc / "hami-hpc-pam.conf").read_text()
    for stage in ("prolog", "epilog"):
        wrapper = etc / f"hami-hpc-{stage}"
        assert f"exec '{installation.prefix}/libexec/hami-hpc/{stage}'" in wrapper.read_text()
        ran = installation.run(str(wrapper), **job_environment(7))
        assert (ran.returncode, ran.stderr) == (0, "")
        assert (7 in node.grants()) == (stage == "prolog")


def test_the_units_of_nodes_are_those_that_render_writes(installation: Installation, tmp_path: Path) -> None:
    """make install writes them for the settings' usual place; render for those that it was given."""
    node = Node.make(tmp_path / "node")
    hami = str(installation.file("bin/hami-hpc"))
    done = installation.run(
        hami, "render", "--config", str(node.config), "--gpus", "h200:2", "-o", str(tmp_path / "etc")
    )
    assert done.returncode == 0, done.stderr
    usual = f"{installation.prefix.parent}/etc/hami-hpc/hami-hpc.toml"
    for name in ("agent.service", "metrics.service", "reconcile.service", "reconcile.timer"):
        rendered = (tmp_path / "etc" / f"hami-hpc-{name}").read_text().replace(str(node.config), usual)
        mark, _, text = rendered.partition("\n")
        assert "sha256" in mark.lower() or "render" in mark
        assert installation.file(f"lib/systemd/system/hami-hpc-{name}").read_text() == text
    assert installation.file("lib/tmpfiles.d/hami-hpc.conf").exists()


@pytest.mark.parametrize("script", ["at-one-place", "uninstall"])
def test_one_waits_for_another_at_the_same_place(script: str, tmp_path: Path) -> None:
    """As make install of another checkout; users cannot keep it waiting."""
    lib = tmp_path / "lib"
    lib.mkdir()
    lock = lib / ".lock"
    lock.touch(0o644)
    removed = lib / "file"
    removed.touch()
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    (lib / "manifest").write_text(f"{empty}  {removed}\n")
    words = {"at-one-place": [str(lib), "rm", str(removed)], "uninstall": []}[script]
    places = {"DESTDIR": "", "LIBDIR": str(lib), "FORCE": "1", "SYSCONFDIR": str(tmp_path / "etc")}
    command = [str(ROOT / "scripts" / script), *words]
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen(command, env=os.environ | places, stderr=subprocess.PIPE, text=True)
        assert process.stderr
        said = next((line for line in process.stderr if ": waits for " in line), "")
        was_there, mode = removed.exists(), lock.stat().st_mode & 0o777
    assert str(lib) in said
    assert (was_there, mode) == (True, 0o600)
    process.communicate(timeout=30)
    assert (process.returncode, removed.exists()) == (0, False)


def test_who_waits_while_the_place_is_removed_begins_anew(tmp_path: Path) -> None:
    """What it waited for is no lock of the new place."""
    lock = tmp_path / "lib/.lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [str(ROOT / "scripts/at-one-place"), str(lock.parent), "flock", "-n", str(lock), "true"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr
        assert "waits for another" in process.stderr.readline()
        lock.unlink()
        lock.parent.rmdir()
    assert process.wait(30) == 1, "it holds the new one"
    process.stderr.close()


@pytest.mark.parametrize("flags", [("-n",), ("-n", "--no-print-directory"), ("-ns", "-j2")])
def test_make_n_install_says_what_it_would_do_and_writes_nothing(flags: tuple[str, ...], tmp_path: Path) -> None:
    command = ["make", *flags, "install", f"DESTDIR={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "scripts/install\n" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", ["", " --no-print-directory", "--no-print-directory", "s", "DESTDIR=/n"])
def test_no_other_flag_of_makes_is_taken_for_that(flags: str, tmp_path: Path) -> None:
    place = tmp_path / "lib"
    command = [str(ROOT / "scripts/at-one-place"), str(place), "true"]
    subprocess.run(command, env=os.environ | {"MAKEFLAGS": flags}, check=True)
    assert (place / ".lock").stat().st_mode & 0o777 == 0o600


def test_make_install_refuses_a_place_that_a_package_has(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/hami-hpc").mkdir(parents=True)
    (tmp_path / "usr/lib/hami-hpc/packaged").write_text("hami-hpc-common 0.1.0\n")
    command = ["make", "install", f"DESTDIR={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "is of a package or tarball" in done.stderr
    assert done.stdout == ""


def test_stages_that_start_while_hami_hpc_is_installed_again_are_whole(installation: Installation) -> None:
    """Each ran with all of the old modules or all of the new ones, and said what it says of missing settings."""
    assert len(installation.epilogs) > 20
    texts = set(installation.epilogs)
    assert len(texts) == 1, texts
    assert "/nonexistent/hami-hpc.toml cannot be read" in texts.pop()


def test_the_python_modules_of_before_stay_for_what_still_runs(installation: Installation) -> None:
    now = installation.file("lib/hami-hpc/venv").resolve()
    assert sorted(now.parent.glob("venv-*")) == sorted([installation.before, now])


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


def test_installing_again_keeps_a_template_that_the_site_edited_and_render_uses_it(
    installation: Installation, tmp_path: Path
) -> None:
    place = installation.prefix.parent / "etc/hami-hpc"
    assert (place / "gres-conf/cgroup.conf.j2").read_text().startswith("# {{ node }}: the site's own\n")
    settings = Node.make(tmp_path / "node", with_gpus=False).config
    (place / "site.toml").write_text(settings.read_text())
    words = ("--config", str(place / "site.toml"), "--gpus", "h200:2", "--node", "n1", "--cgroup", "-o", str(tmp_path))
    (place / "gres-conf").chmod(0o755)
    done = installation.run(str(installation.file("bin/hami-hpc")), "render", *words)
    assert f"note: {place}/gres-conf/cgroup.conf.j2 is used instead of" in done.stdout, done.stderr
    assert "# n1: the site's own\n" in (tmp_path / "cgroup.conf").read_text()


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
    assert sorted(path.name for path in (root / "opt/x/slurm").iterdir()) == [
        "cli_filter_hami_hpc.so",
        "gres_vgpu.so",
        "gres_vgpu_cores.so",
        "gres_vgpu_mem.so",
        "gres_vgpu_slo.so",
        "spank_hami_hpc.so",
        "task_hami_hpc.so",
    ]
    module = root / "opt/x/lib/hami-hpc/pam_hami_hpc.so"
    assert b"/opt/x/lib/hami-hpc/libhami-hpc.so" in module.read_bytes()
    assert "  /opt/x/lib/hami-hpc/pam_hami_hpc.so\n" in (lib / "manifest").read_text()
    header = root / "opt/x/include/hami_hpc.h"
    program = tmp_path / "service.c"
    program.write_text(
        "#include <hami_hpc.h>\n"
        "int main(void) { return hami_hint_begin(0) + hami_hint_end() + hami_hint_soon() != -3 * ENOSYS; }\n"
    )
    options = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{header.parent}"]
    for compiler in (["gcc", *options], ["g++", *options[1:]]):
        command = [*compiler, str(program), "-o", str(tmp_path / "service"), "-ldl"]
        subprocess.run(command, check=True)
        subprocess.run([str(tmp_path / "service")], check=True)
    alone = ["/usr/bin/env", "-i", f"PYTHONPATH={root}/opt/x/share/hami-hpc/python", sys.executable, "-S", "-c"]
    subprocess.run([*alone, "from hami_hpc.hints import request, soon\nwith request(10): soon()"], check=True)
    closed = [path for path in root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o044 != 0o044]
    assert closed == [lib / ".lock"]
    assert not (lib / "libhami-hpc.so.new").exists()
    python = str(lib / "venv/bin/python3")
    code = "import hami_hpc.installed as i; print(i.STAGE_DIR, i.LIB_DIR)"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "/opt/x/stages /opt/x/lib/hami-hpc\n"
