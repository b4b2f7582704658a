# SPDX-License-Identifier: Apache-2.0
"""doctor on sshd's PAM service: whether sessions that pam_slurm_adopt lets in are limited, and nobody is locked out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hami_hpc.core.finding import Finding
from hami_hpc.doctor import pam_checks
from hami_hpc.doctor.facts import Facts

ADOPT = "account required pam_slurm_adopt.so action_no_jobs=deny\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pam.d"
    folder.mkdir()
    monkeypatch.setattr(pam_checks, "FOLDER", folder)
    (tmp_path / "pam_hami_hpc.so").write_text("")
    return folder


def ours(folder: Path, control: str = "required", **changed: str) -> str:
    given = {"run_dir": "/run/hami-hpc", "interposer": f"{folder.parent}/libhami-hpc.so", "preload": "ldso"} | changed
    arguments = " ".join(f"{key}={value}" for key, value in given.items())
    return f"session {control} {folder.parent}/pam_hami_hpc.so {arguments}\n"


def findings(folder: Path, **files: str) -> list[Finding]:
    for name, text in files.items():
        (folder / name.replace("_", "-")).write_text(text)
    values = SimpleNamespace(
        preload="ldso", run_dir="/run/hami-hpc", interposer=f"{folder.parent}/libhami-hpc.so", path="/etc/hami.toml"
    )
    return list(pam_checks.check_sshd(cast("Facts", SimpleNamespace(settings=values))))


def test_a_node_whose_sshd_does_not_adopt_has_no_finding(folder: Path) -> None:
    assert findings(folder) == []
    assert findings(folder, sshd="# account required pam_slurm_adopt.so\naccount include none\n@include\n") == []


@pytest.mark.parametrize(
    "sshd",
    [
        ADOPT,
        "-account [success=1 default=ignore] /opt/slurm/pam_slurm_adopt.so\n",
        "account required \\\n pam_slurm_adopt.so\n",
        "@include common-account\n",
        "account substack common-account\n",
    ],
)
def test_sessions_that_are_adopted_and_not_limited_are_a_warning_with_the_line(folder: Path, sshd: str) -> None:
    (found,) = findings(folder, sshd=sshd, common_account=ADOPT)
    assert (found.what, found.level.value) == ("sshd", "WARN")
    assert "sessions of pam_slurm_adopt see the GPU without limits" in found.detail
    assert ours(folder).strip() in found.advice


@pytest.mark.parametrize("sshd", ["{adopt}{ours}", "{ours}{adopt}", "{adopt}session include common-session\n"])
def test_a_line_with_the_settings_arguments_is_well(folder: Path, sshd: str) -> None:
    text = sshd.format(adopt=ADOPT, ours=ours(folder))
    (found,) = findings(folder, sshd=text, common_session=ours(folder))
    assert (found.what, found.level.value, found.advice) == ("sshd", "OK", "")


def test_a_line_that_would_let_an_unlimited_session_begin_is_named(folder: Path) -> None:
    (found,) = findings(folder, sshd=ADOPT + ours(folder, "optional"))
    assert (found.level.value, "sshd:2: optional" in found.detail) == ("WARN", True)
    (found,) = findings(folder, sshd=ADOPT + ours(folder, run_dir="/other"))
    assert (found.level.value, "sshd:2: run_dir=/other" in found.detail) == ("WARN", True)
    assert ours(folder).strip() in found.advice
    assert findings(folder, sshd=ADOPT + ours(folder, "requisite"))[0].is_ok


SYSTEMD = "session optional pam_systemd.so\n"


def test_pam_systemd_takes_the_session_out_of_its_jobs_cgroup_in_any_order(folder: Path) -> None:
    line, found = findings(folder, sshd=ADOPT + SYSTEMD + ours(folder))
    assert (line.level.value, found.level.value) == ("OK", "WARN")
    assert f"{folder}/sshd:2: pam_systemd takes sessions out of their job's cgroup" in found.detail
    assert "are not limited" in found.detail
    line, found = findings(folder, sshd=ADOPT + ours(folder) + "@include common-session\n", common_session=SYSTEMD)
    assert (line.level.value, found.level.value) == ("OK", "WARN")
    assert f"{folder}/common-session:1: pam_systemd" in found.detail
    assert "can open every GPU" in found.detail
    assert "take pam_systemd.so out" in found.advice


def test_pam_systemd_is_named_also_where_the_line_is_missing(folder: Path) -> None:
    line, found = findings(folder, sshd=ADOPT + SYSTEMD)
    assert "has no pam_hami_hpc.so" in line.detail
    assert "are not limited" in found.detail


def test_a_module_that_is_not_there_fails_since_nobody_could_log_in(folder: Path) -> None:
    (folder.parent / "pam_hami_hpc.so").unlink()
    (found,) = findings(folder, sshd=ADOPT + ours(folder))
    assert found.level.value == "FAIL"
    assert "does not exist" in found.detail


def test_files_that_include_each_other_end(folder: Path) -> None:
    assert findings(folder, sshd="@include sshd\naccount include other\n", other="@include sshd\n") == []
