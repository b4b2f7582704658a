# SPDX-License-Identifier: Apache-2.0
"""What is in which package, what a package needs, and the tarball's install. Real chroots: make test-packages."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest
from hami_packages import debian, release, rpm, tarball, trees
from install_testbed import PIP, files, make_install, seed_venv
from node_testbed import ROOT

from hami_hpc.cli import NODE_COMMANDS

PLUGINS = "/usr/lib/x86_64-linux-gnu/slurm-wlm"
PLACES = {
    "PREFIX": "/usr",
    "SYSCONFDIR": "/etc",
    "LIBDIR": "/usr/lib/hami-hpc",
    "LIBEXECDIR": "/usr/libexec/hami-hpc",
    "DATADIR": "/usr/share/hami-hpc",
    "UNITDIR": "/usr/lib/systemd/system",
    "PLUGINDIR": PLUGINS,
    "ZSHDIR": "/usr/share/zsh/vendor-completions",
    "TMPFILESDIR": "/usr/lib/tmpfiles.d",
}
PARTS = ("common", "slurm", "node", "accounting")
CONTENTS = {
    "slurm": {
        *(f"{PLUGINS}/{name}.so" for name in ("gres_vgpu", "gres_vgpu_cores", "gres_vgpu_mem", "gres_vgpu_slo")),
        *(f"{PLUGINS}/{name}_hami_hpc.so" for name in ("spank", "task", "cli_filter")),
        *(f"/usr/lib/hami-hpc/lua/{path.name}" for path in (ROOT / "slurm-plugins/lua").glob("*.lua")),
        *(f"/usr/share/doc/hami-hpc-slurm/{name}" for name in ("COPYING", "LICENSE", "copyright")),
    },
    "node": {
        "/usr/lib/hami-hpc/libhami-hpc.so",
        "/usr/lib/hami-hpc/hami-hpc-measure",
        "/usr/lib/hami-hpc/hami-hpc-watch",
        "/usr/lib/hami-hpc/pam_hami_hpc.so",
        "/usr/libexec/hami-hpc/oci-mounts",
        "/usr/share/hami-hpc/enroot/50-hami-hpc.sh",
        "/usr/share/hami-hpc/podman/hami-hpc.json",
        *(f"/usr/lib/systemd/system/hami-hpc-{name}.service" for name in ("agent", "metrics", "reconcile")),
        "/usr/lib/systemd/system/hami-hpc-reconcile.timer",
        "/usr/lib/tmpfiles.d/hami-hpc.conf",
        *(f"/usr/share/doc/hami-hpc-node/{name}" for name in ("COPYING", "LICENSE", "copyright")),
    },
    "accounting": {
        *(f"/usr/libexec/hami-hpc/{name}" for name in ("ingest", "month")),
        *(f"/usr/lib/systemd/system/hami-hpc-{n}.{k}" for n in ("ingest", "month") for k in ("service", "timer")),
        *(f"/usr/share/hami-hpc/{name}.toml" for name in ("rates", "finance")),
        "/usr/share/doc/hami-hpc/accounting.md",
        *(f"/usr/share/doc/hami-hpc-accounting/{name}" for name in ("LICENSE", "copyright")),
    },
    "common": {
        "/usr/bin/hami-hpc",
        "/usr/include/hami_hpc.h",
        "/usr/lib/hami-hpc/packaged",
        *(f"/usr/libexec/hami-hpc/{name}" for name in ("prolog", "epilog", "resize", "suspend")),
        *(f"/usr/libexec/hami-hpc/{name}" for name in ("stage.py", "python.sh")),
        *(f"/usr/libexec/hami-hpc/{name}" for name in ("in-use", "uninstall", "use-python")),
        *(f"/usr/share/hami-hpc/gres-conf/{path.name}" for path in (ROOT / "gres-conf").iterdir()),
        "/usr/share/hami-hpc/python/hami_hpc/hints.py",
        "/usr/share/man/man1/hami-hpc.1",
        *(f"/usr/share/man/man1/hami-hpc-{name}.1" for name in NODE_COMMANDS),
        "/usr/share/bash-completion/completions/hami-hpc",
        "/usr/share/fish/vendor_completions.d/hami-hpc.fish",
        "/usr/share/zsh/vendor-completions/_hami-hpc",
        "/usr/share/doc/hami-hpc/hami-hpc.toml.example",
        *(f"/usr/share/doc/hami-hpc-common/{name}" for name in ("LICENSE", "copyright")),
    },
}
ACCOUNTING_PAGES = "/usr/share/man/man1/"


def python_of(system: Path) -> str:
    (library,) = system.glob("lib/python3.*")
    return library.name.removeprefix("python")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[release.Release, Path]:
    """The release and the trees of its parts, of a make install without what pip would fetch."""
    base = tmp_path_factory.mktemp("packages")
    installed = base / "installed"
    seed_venv(installed / "usr/lib/hami-hpc/venv")
    make_install(PIP, DESTDIR=str(installed), PLUGINDIR=PLUGINS, ZSHDIR=PLACES["ZSHDIR"])
    python = python_of(installed / "usr/lib/hami-hpc/venv")
    slurm = release.slurm_release(ROOT / "build/slurm-plugins")
    this = release.Release("1.0", slurm, python, PLACES, 1_700_000_000)
    folder = base / "trees"
    trees.divide(installed, folder, this)
    trees.add_python(installed, folder, this)
    trees.finish(folder, PARTS, this)
    return this, folder


def names_in(tree: Path) -> set[str]:
    names = {f"/{path.relative_to(tree)}" for path in tree.rglob("*") if not path.is_dir() or path.is_symlink()}
    return {name for name in names if not name.startswith("/usr/lib/hami-hpc/python/")}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_these_files_and_no_others(made: tuple[release.Release, Path], part: str) -> None:
    """The seeded venv sees accounting's requirements, so that make install writes the man pages of its commands too."""
    accounting = {name for name in names_in(made[1] / "common") if name.startswith(ACCOUNTING_PAGES)}
    accounting -= CONTENTS["common"]
    assert names_in(made[1] / part) - accounting == CONTENTS[part]


def test_a_file_that_no_line_gives_a_part_is_an_error(made: tuple[release.Release, Path]) -> None:
    with pytest.raises(release.PackagingError, match=r"parts\.tsv says which part /usr/lib/hami-hpc/new"):
        trees.part_of("/usr/lib/hami-hpc/new", trees.table(made[0]))


def test_the_python_packages_are_whole_compiled_and_of_no_machine(made: tuple[release.Release, Path]) -> None:
    this, folder = made
    python = folder / "common/usr/lib/hami-hpc/python"
    packages = python / trees.site_packages(this)
    names = {path.name for path in packages.iterdir()}
    assert not any(name.startswith(("pip", "setuptools", "pkg_resources", "_distutils_hack")) for name in names)
    sources = list((packages / "hami_hpc").rglob("*.py"))
    compiled = [
        path.parent / "__pycache__" / f"{path.stem}.cpython-{this.python.replace('.', '')}.pyc" for path in sources
    ]
    assert all(path.exists() for path in compiled)
    stage = compiled[sources.index(packages / "hami_hpc/stages/prolog.py")].read_bytes()
    assert int.from_bytes(stage[8:12], "little") == this.epoch, "Python would compile it again in each prolog"
    installed = (packages / "hami_hpc/installed.py").read_text()
    assert 'ACCOUNTING_DIR: Final[str] = "/usr/lib/hami-hpc/accounting"' in installed
    (packages / "checkout.pth").rename(folder / "checkout.pth")  # of the seeded venv
    try:
        named = [path for part in PARTS for path in (folder / part).rglob("*") if path.is_file()]
        assert [path for path in named if os.fsencode(ROOT) in path.read_bytes()] == []
    finally:
        (folder / "checkout.pth").rename(packages / "checkout.pth")


def test_a_package_needs_exactly_its_slurm(made: tuple[release.Release, Path]) -> None:
    this = made[0]
    slurm = debian.slurm_packages(this)
    first, beyond = debian.bounds(this.slurm, slurm.epoch)
    installed = debian._dpkg_query("--show", "--showformat=${Version}", slurm.plugins)
    for operator, version in (("ge", first), ("lt", beyond)):
        subprocess.run(("dpkg", "--compare-versions", installed, operator, version), check=True)
    relations = debian.relations("slurm", this, slurm, "")
    assert f"{slurm.plugins} (>= {first}), {slurm.plugins} (<< {beyond})" in relations["Depends"]
    assert relations["Breaks"] == f"{slurm.plugins} (>= {beyond})"
    assert slurm.slurmd in debian.relations("node", this, slurm, "libc6")["Depends"].split(", ")


@pytest.mark.parametrize(
    ("slurm", "epoch", "inside", "outside"),
    [
        ("22.05.8", "", ("22.05.8-4+deb12u3", "22.05.8"), ("22.05.7-1", "22.05.9-1", "22.05.9~rc1-1", "22.05.10-1")),
        ("24.11.9", "1:", ("1:24.11.9-1",), ("24.11.9-1", "1:24.11.10-1", "1:24.11.8-1")),
    ],
)
def test_another_micro_release_is_another_slurm(
    slurm: str, epoch: str, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    first, beyond = debian.bounds(slurm, epoch)
    for version in (*inside, *outside):
        compared = ((version, "ge", first), (version, "lt", beyond))
        fits = all(
            subprocess.run(("dpkg", "--compare-versions", *words), check=False).returncode == 0 for words in compared
        )
        assert fits == (version in inside), version


def test_plugins_of_another_slurm_than_the_packages_are_not_packaged(made: tuple[release.Release, Path]) -> None:
    this = made[0]
    other = release.Release(this.version, "21.08.1", this.python, this.places, this.epoch)
    with pytest.raises(
        release.PackagingError, match=r"built for Slurm 21\.08\.1, and the package .* has .*make plugins"
    ):
        debian.slurm_packages(other)


def test_versions_are_those_that_dpkg_and_rpm_take_and_grow() -> None:
    assert release.version("1.2.3~rc1") == "1.2.3~rc1"
    for wrong in ("v1", "1.2-3", "1 2", "1;reboot"):
        with pytest.raises(release.PackagingError, match="begins with a digit"):
            release.version(wrong)
    versions = ["0.1.0~rc1", "0.1.0", "0.1.0+git864.8acf810cd4", "0.1.0+git1000.0000000000", "0.2.0"]
    for older, newer in itertools.pairwise(versions):
        subprocess.run(("dpkg", "--compare-versions", f"{older}-22.05.8", "lt", f"{newer}-22.05.8"), check=True)
    subprocess.run(("dpkg", "--compare-versions", "1.0-22.05.8", "lt", "1.0-22.05.10"), check=True)


def test_the_same_trees_give_the_same_bytes(made: tuple[release.Release, Path], tmp_path: Path) -> None:
    this, folder = made
    for target in (tmp_path / "one", tmp_path / "two"):
        debian.build(("node",), folder, target, this)
        tarball.build("controller", folder, target, this)
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    assert one == two
    assert len(one) == 2


def test_the_spec_has_each_file_once_and_the_scripts_of_the_debian_packages(
    made: tuple[release.Release, Path],
) -> None:
    this, folder = made
    spec = rpm.spec(("common", "slurm", "node"), folder, this)
    for part in ("common", "slurm", "node"):
        listed = spec.partition(f"\n%files {part}\n")[2].partition("\n\n")[0].splitlines()
        assert names_in(folder / part) <= {*listed}
        assert len(listed) == len({*listed})
    assert f"Requires: slurm = {this.slurm}\n" in spec
    assert spec.count("%preun node\nif [") == 1
    assert "/usr/libexec/hami-hpc/use-python" in spec.partition("%post common\n")[2].partition("%files")[0]


@pytest.fixture
def unpacked(made: tuple[release.Release, Path], tmp_path: Path) -> Path:
    """A node's tarball, unpacked."""
    path = tarball.build("node", made[1], tmp_path, made[0])
    subprocess.run(("tar", "-xzf", path, "-C", tmp_path), check=True)
    return tmp_path / tarball.name_of("node", made[0])


def install(unpacked: Path, root: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "DESTDIR": str(root), **environment}
    command = (str(unpacked / "install"), *words)
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_a_tarball_installs_upgrades_and_is_removed_again(unpacked: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    others = root / "etc/slurm/slurm.conf"
    others.parent.mkdir(parents=True)
    others.write_text("ClusterName=site\n")
    assert install(unpacked, root, "--check").returncode == 0
    assert list(files(root)) == ["etc/slurm/slurm.conf"]
    done = install(unpacked, root)
    assert done.returncode == 0, done.stderr
    library = root / "usr/lib/hami-hpc"
    first = (library / "venv").resolve()
    said = subprocess.run((library / "venv/bin/python3", "-I", "-m", "hami_hpc.cli", "--version"), capture_output=True)
    assert said.stdout.startswith(b"hami-hpc, version")
    assert (root / "etc/ld.so.preload").read_bytes() == b""

    measure = unpacked / "node/usr/lib/hami-hpc/hami-hpc-measure"
    measure.rename(measure.with_name("hami-hpc-measured"))  # the next version has one whose path begins with this one's
    sums = unpacked / "SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if "hami-hpc-measure" not in line))
    edited = root / "usr/libexec/hami-hpc/in-use"
    assert install(unpacked, root).returncode == 0
    assert not (library / "hami-hpc-measure").exists()
    assert (library / "venv").resolve() != first
    assert first.exists(), "what still runs may import from it"
    assert edited.exists()

    environment = {"PATH": os.environ["PATH"], "DESTDIR": str(root)}
    removed = subprocess.run([root / "usr/libexec/hami-hpc/uninstall"], env=environment, capture_output=True, text=True)
    assert removed.returncode == 0, removed.stderr
    assert set(files(root)) == {"etc/slurm/slurm.conf", "etc/ld.so.preload"}


@pytest.mark.parametrize(
    ("words", "status"), [(("--help",), 0), (("-h",), 0), (("--dry-run",), 2), (("--check", "x"), 2), (("",), 2)]
)
def test_a_word_that_install_does_not_know_installs_nothing(
    unpacked: Path, tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    done = install(unpacked, tmp_path / "root", *words)
    assert done.returncode == status
    assert "--check" in (done.stderr if status else done.stdout)
    assert not (tmp_path / "root").exists()


def test_a_tarball_that_does_not_fit_the_machine_changes_nothing(unpacked: Path, tmp_path: Path) -> None:
    root, programs = tmp_path / "root", tmp_path / "bin"
    programs.mkdir()
    slurmd = programs / "slurmd"
    slurmd.write_text("#!/bin/sh\necho slurm-wlm 21.08.1\n")
    slurmd.chmod(0o755)
    done = install(unpacked, root, PATH=f"{programs}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "and this machine has 21.08.1" in done.stderr
    assert not root.exists()

    slurmd.unlink()
    for program, printed, words in (
        ("uname", "riscv64", "and this machine is riscv64"),
        ("ldd", "libc.so.6: version `GLIBC_2.99' not found", "libraries do not fit: libc.so.6"),
    ):
        (programs / program).write_text(f'#!/bin/sh\necho "{printed}"\n'.replace("`", "'"))
        (programs / program).chmod(0o755)
        done = install(unpacked, root, PATH=f"{programs}:{os.environ['PATH']}")
        assert done.returncode == 1
        assert words in done.stderr
        assert not root.exists()
        (programs / program).unlink()

    text = (unpacked / "release").read_text()
    (unpacked / "release").write_text(text.replace("/usr/bin/python3", "/usr/bin/python2"))
    done = install(unpacked, root)
    assert "this tarball is not whole" in done.stderr
    sums = (unpacked / "SHA256SUMS").read_text()
    (unpacked / "SHA256SUMS").write_text("".join(x for x in sums.splitlines(True) if not x.endswith(" release\n")))
    done = install(unpacked, root)
    assert "is missing: install it" in done.stderr
    (unpacked / "release").write_text(text)

    library = root / "usr/lib/hami-hpc"
    library.mkdir(parents=True)
    for name, words in (("packaged", "a Debian package or an RPM"), ("manifest", "make install has installed")):
        (library / name).write_text("")
        done = install(unpacked, root)
        assert done.returncode == 1
        assert words in done.stderr
        assert list(files(root)) == [f"usr/lib/hami-hpc/{name}"]
        (library / name).unlink()


def test_an_install_that_was_killed_is_finished_by_the_next(unpacked: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    manifests = root / "usr/lib/hami-hpc/manifests"
    manifests.mkdir(parents=True)
    (manifests / "slurm.new").write_text("half a li")
    (root / "usr/lib/hami-hpc/python.new").mkdir()
    (root / "usr/lib/hami-hpc/venv-1-1/bin").mkdir(parents=True)
    assert install(unpacked, root).returncode == 0
    left = sorted(path.name for path in (root / "usr/lib/hami-hpc").iterdir() if path.name != ".lock")
    assert [name for name in left if name.endswith(".new") or name == "venv-1-1"] == []
    lines = (root / "usr/lib/hami-hpc/manifest").read_text().splitlines()
    assert len(lines) == len({*lines})
    assert all(len(line.split("  ")[0]) == 64 for line in lines)


def test_what_an_ordinary_user_unpacked_is_roots_and_for_everybody_to_read(unpacked: Path, tmp_path: Path) -> None:
    """tar gives files to whoever unpacks them, and takes the umask from their modes."""
    root = tmp_path / "root"
    for path in (unpacked, *unpacked.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, 4711, 4711, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
    assert install(unpacked, root).returncode == 0
    installed = [path for path in root.rglob("*") if path.name != ".lock"]
    assert [path for path in installed if path.lstat().st_uid != os.geteuid()] == []
    closed = [path for path in installed if not path.is_symlink() and path.stat().st_mode & 0o044 != 0o044]
    assert closed == []
    for name in ("libexec/hami-hpc/prolog", "bin/hami-hpc", "lib/hami-hpc/hami-hpc-watch"):
        assert (root / "usr" / name).stat().st_mode & 0o777 == 0o755


def test_the_parts_of_another_tarball_that_stay_as_they_were_are_named(
    made: tuple[release.Release, Path], unpacked: Path, tmp_path: Path
) -> None:
    """Such as the interposer where only the controller's tarball is installed anew."""
    root = tmp_path / "root"
    assert "still of before" not in install(unpacked, root).stdout
    packaged = root / "usr/lib/hami-hpc/packaged"
    packaged.write_text(packaged.read_text().replace("1.0", "0.9"))
    path = tarball.build("controller", made[1], tmp_path, made[0])
    subprocess.run(("tar", "-xzf", path, "-C", tmp_path), check=True)
    controller = tmp_path / tarball.name_of("controller", made[0])
    said = install(controller, root).stdout
    assert "install: still of before (hami-hpc 0.9, plugins for Slurm " in said
    assert "): node. All parts of a machine have one version: install that tarball of 1.0, too\n" in said
    assert "still of before" not in install(controller, root).stdout


def test_below_a_link_the_copy_before_stays_for_what_still_runs(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to("disk")
    venv = tmp_path / "root/usr/lib/hami-hpc/venv"
    used = []
    for _ in range(3):
        assert install(unpacked, tmp_path / "root").returncode == 0
        used.append(venv.resolve())
        assert [path.exists() for path in used[-2:]] == [True] * len(used[-2:])
    assert not used[0].exists()


def test_python_that_does_not_run_leaves_the_one_before_in_use(unpacked: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert install(unpacked, root).returncode == 0
    library = root / "usr/lib/hami-hpc"
    before = (library / "venv").resolve()
    for source in (library / "python").rglob("stages/prolog.py"):
        source.unlink()
        source.write_text("import no_such_module\n")
    environment = {"PATH": os.environ["PATH"], "DESTDIR": str(root)}
    use = [root / "usr/libexec/hami-hpc/use-python"]
    done = subprocess.run(use, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "The ones before stay in use" in done.stderr
    assert (library / "venv").resolve() == before
    assert [path for path in library.glob("venv-*") if path != before] == []
