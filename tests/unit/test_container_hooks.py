# SPDX-License-Identifier: Apache-2.0
"""What enroot's hook and oci-mounts make of container.mounts, which SPANK writes (docs/containers.md)."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from node_testbed import ROOT

from hami_hpc.contract import constants as c

LIST = (
    "/run/hami-hpc/self /run/hami-hpc/self none x-create=dir,rbind,rw,nosuid 0 0\n"
    "/l/libhami-hpc.so /l/libhami-hpc.so none x-create=file,bind,ro 0 0\n"
)
MOUNTS = [
    {"destination": "/run/hami-hpc/self", "type": "none", "source": "/run/hami-hpc/self"}
    | {"options": ["rbind", "rw", "nosuid"]},
    {"destination": "/l/libhami-hpc.so", "type": "none", "source": "/l/libhami-hpc.so", "options": ["bind", "ro"]},
]
PROC = {"destination": "/proc", "type": "proc", "source": "proc"}


@pytest.fixture
def oci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with the list of a test."""
    spec = importlib.util.spec_from_file_location("oci_mounts", ROOT / "containers/oci_mounts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "container.mounts").write_text(LIST)
    monkeypatch.setattr(module, "LIST", tmp_path / "container.mounts")
    return module


def bundle_with(tmp_path: Path, config: object) -> Path:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (bundle / "config.json").chmod(0o640)
    return bundle


def config_of(bundle: Path) -> Any:
    return json.loads((bundle / "config.json").read_text())


def test_both_read_the_list_where_spank_writes_it() -> None:
    path = f"{c.FILE_SELF}/{c.FILE_CONTAINER_MOUNTS}"
    for name in ("containers/oci_mounts.py", "containers/enroot/50-hami-hpc.sh"):
        assert path in (ROOT / name).read_text()


def test_a_bundle_gets_the_binds_once_and_after_all_others(oci: ModuleType, tmp_path: Path) -> None:
    bundle = bundle_with(tmp_path, {"ociVersion": "1.0.0", "mounts": [MOUNTS[0], PROC]})
    for _ in range(2):
        assert oci.main([str(bundle)]) == 0
        assert config_of(bundle) == {"ociVersion": "1.0.0", "mounts": [PROC, *MOUNTS]}
    assert sorted(path.name for path in bundle.iterdir()) == ["config.json"]
    assert (bundle / "config.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mounts", [{}, {"mounts": None}])
def test_a_config_without_mounts_gets_them(oci: ModuleType, tmp_path: Path, mounts: dict[str, object]) -> None:
    bundle = bundle_with(tmp_path, mounts)
    assert oci.main([str(bundle)]) == 0
    assert config_of(bundle)["mounts"] == MOUNTS


def test_as_a_hook_it_answers_on_standard_output(
    oci: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"mounts": []}'))
    assert oci.main([]) == 0
    assert json.loads(capsys.readouterr().out) == {"mounts": MOUNTS}


def test_in_a_job_without_limits_nothing_changes(
    oci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    oci.LIST.unlink()
    assert oci.main([str(bundle_with(tmp_path, "not JSON, and not read"))]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("{ }"))
    assert oci.main([]) == 0
    assert capsys.readouterr().out == "{ }"


@pytest.mark.parametrize(
    ("config", "words"),
    [("{", "is not JSON"), ([], "is not that of an OCI bundle"), ({"mounts": {}}, "is not that of an OCI bundle")],
)
def test_what_cannot_be_limited_is_refused_and_stays(
    oci: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: object, words: str
) -> None:
    bundle = bundle_with(tmp_path, config)
    before = (bundle / "config.json").read_text()
    assert oci.main([str(bundle)]) == 1
    assert words in capsys.readouterr().err
    assert (bundle / "config.json").read_text() == before
    assert len(list(bundle.iterdir())) == 1


def test_a_bundle_that_cannot_be_changed_is_refused(
    oci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = bundle_with(tmp_path, {})

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert oci.main([str(bundle)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert config_of(bundle) == {}
    assert len(list(bundle.iterdir())) == 1
    assert oci.main([str(tmp_path / "none")]) == 1


def test_a_damaged_list_is_refused_and_other_words_are_usage(oci: ModuleType, tmp_path: Path) -> None:
    bundle = bundle_with(tmp_path, {})
    oci.LIST.write_text("relative /x none bind 0 0\n")
    assert oci.main([str(bundle)]) == 1
    assert config_of(bundle) == {}
    assert oci.main(["--help"]) == oci.main(["a", "b"]) == 2


def test_the_hook_of_enroot_adds_the_list_to_the_containers_mounts(tmp_path: Path) -> None:
    mounts = tmp_path / "fstab"
    mounts.write_text("/a /a none bind\n")
    listed = tmp_path / "container.mounts"
    hook = tmp_path / "hook.sh"
    path = f"{c.FILE_SELF}/{c.FILE_CONTAINER_MOUNTS}"
    hook.write_text((ROOT / "containers/enroot/50-hami-hpc.sh").read_text().replace(path, str(listed)))
    environment = {"PATH": os.environ["PATH"], "ENROOT_MOUNTS": str(mounts)}
    subprocess.run(["sh", str(hook)], env=environment, check=True)
    assert mounts.read_text() == "/a /a none bind\n", "a job without limits"
    listed.write_text(LIST)
    subprocess.run(["sh", str(hook)], env=environment, check=True)
    assert mounts.read_text() == "/a /a none bind\n" + LIST


def test_the_hook_of_podman_runs_the_installed_script_before_each_container() -> None:
    hook = json.loads((ROOT / "containers/podman/hami-hpc.json").read_text())
    assert hook["stages"] == ["precreate"]
    assert hook["hook"] == {"path": "/usr/libexec/hami-hpc/oci-mounts", "args": ["oci-mounts"]}
