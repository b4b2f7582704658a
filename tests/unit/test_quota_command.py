# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc quota` with a slurmdbd of the tests' own, and slurm.conf's lines for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import Node
from test_qos_plan import SLURM_22_05
from test_quota_plan import FULL, SITE, Accounts

from hami_hpc.cli import main
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.core.quota import Quota, Quotas
from hami_hpc.render import quota_lines
from hami_hpc.slurm import commands, limits_view
from hami_hpc.slurm.lines import logical_lines, parse_line, settings_of

# scontrol --oneliner show assoc_mgr of Slurm 22.05.8, without most TRES.
IN_USE = """\
Current Association Manager state
Association Records
ClusterName=demo Account=physics UserName= Partition= Priority=0 ID=3 GrpWall=N(0.00) \
GrpTRES=cpu=N(2),node=N(1),billing=1500(996),gres/gpu=N(0) GrpTRESMins=cpu=N(0),billing=6000000(90000),gres/gpu=N(0) \
GrpTRESRunMins=cpu=N(0),billing=N(7) MaxJobs=
ClusterName=demo Account=physics UserName=games(5) Partition= ID=4 GrpTRES=billing=N(77) GrpTRESMins=billing=N(0)
ClusterName=other Account=physics UserName= Partition= ID=9 GrpTRES=cpu=N(2),billing=5(5) GrpTRESMins=billing=N(0)
QOS Records
QOS=guarantee-physics(6) UsageRaw=0.0 GrpTRES=cpu=N(1),billing=500(498) GrpTRESMins=billing=N(0) MaxWallPJ=
"""
CONF = """\
ClusterName=demo
AccountingStorageEnforce=associations,qos
PartitionName=DEFAULT TRESBillingWeights=CPU=1.0
PartitionName=gpu Nodes=node1 State=UP
"""


class Site:
    """Settings with a partition of H200s, quotas.toml, a slurmdbd, and slurm.conf."""

    def __init__(self, folder: Path) -> None:
        self.slurmdbd = Accounts(SITE, {("physics", "ann"): "be,normal"})
        self.config = Node.make(folder / "node").config
        self.quotas = self.config.with_name("quotas.toml")
        self.quotas.write_text(FULL)
        self.slurm_conf = folder / "slurm.conf"
        self.slurm_conf.write_text(CONF)
        self.calls: list[Sequence[str]] = []

    def change(self, words: Sequence[str]) -> None:
        self.calls.append(words)
        self.slurmdbd.run(tuple(words))

    def rows(self, cluster: str, columns: Sequence[str]) -> list[dict[str, str]]:
        assert cluster == "demo"
        found = []
        for row in self.slurmdbd.all().associations:
            limits = self.slurmdbd.limits[row.account] if not row.user else {}
            values = {"Account": row.account, "User": row.user, "ParentName": row.parent, "Fairshare": "1"} | limits
            values |= {"QOS": ",".join(sorted(row.qos)), "DefaultQOS": row.default_qos}
            found.append({column: values.get(column, "") for column in columns})
        return found

    def run(self, *words: str) -> Result:
        environment = {"HAMI_HPC_CONFIG": str(self.config), "SLURM_CONF": str(self.slurm_conf)}
        return CliRunner().invoke(main, ["quota", *words], env=environment)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path)
    monkeypatch.setattr(commands, "configuration", lambda: {"ClusterName": "demo"})
    monkeypatch.setattr(commands, "association_rows", site.rows)
    monkeypatch.setattr(commands, "qos_rows", lambda _columns: list(site.slurmdbd.rows.values()))
    monkeypatch.setattr(commands, "change_accounting", site.change)
    monkeypatch.setattr(commands, "show_limits", lambda: IN_USE)
    monkeypatch.setattr(commands, "show_nodes", lambda: "")
    monkeypatch.setattr(commands, "version", lambda: SLURM_22_05)
    return site


def test_apply_goes_on_until_slurmdbd_has_all_of_it_and_then_does_nothing(site: Site) -> None:
    dry = site.run("apply", "--dry-run")
    assert (dry.exit_code, site.calls) == (ExitCode.FOUND, [])
    assert "commands for users with a QoS list of their own follow" in dry.stdout
    done = site.run("apply")
    assert done.exit_code == ExitCode.DONE
    assert done.stdout.startswith(dry.stdout.partition("\n\n")[0]), "and more"
    assert len(site.calls) == 7
    again = site.run("apply")
    assert again.exit_code == ExitCode.DONE
    assert again.stdout.startswith(f"nothing to do: slurmdbd has the quotas of {site.quotas}\n")
    assert len(site.calls) == 7
    assert site.run("apply", "--dry-run").exit_code == ExitCode.DONE


def test_show_has_both_sides_and_what_is_in_use(site: Site) -> None:
    assert site.run("show").exit_code == ExitCode.FOUND
    site.run("apply")
    shown = site.run("show")
    assert shown.exit_code == ExitCode.DONE
    cells = [line.split() for line in shown.stdout.splitlines()]
    assert ["physics", "gpus", "1.5", "1.5", "0.996"] in cells
    assert ["physics", "gpu_hours", "100", "100", "1.5"] in cells
    assert ["physics", "guaranteed_gpus", "0.5", "0.5", "0.498"] in cells
    assert "# note: jobs of QoS normal are not preempted for a guarantee" in shown.stdout
    values = json.loads(site.run("show", "--format", "json").stdout)
    assert values["differs"] is False
    assert {"account": "vision", "key": "fairshare", "quotas": "10", "slurmdbd": "10"}.items() <= next(
        row for row in values["values"] if row["account"] == "vision"
    ).items()


def test_a_user_who_lost_the_qos_differs_although_every_number_is_right(site: Site) -> None:
    site.run("apply")
    site.slurmdbd.lists["physics", "ann"] = {"normal"}
    assert site.run("show").exit_code == ExitCode.FOUND


def test_an_unknown_account_ends_apply_before_anything_is_changed(site: Site) -> None:
    site.quotas.write_text(FULL + "[accounts.chemistry]\ngpus = 1\n")
    done = site.run("apply")
    assert done.exit_code == ExitCode.FAILED
    assert "slurmdbd has no account chemistry: sacctmgr add account chemistry. Nothing was changed" in done.stderr
    assert site.calls == []
    assert site.run("show").exit_code == ExitCode.FOUND


def test_a_borrower_that_slurmdbd_lacks_ends_apply(site: Site) -> None:
    site.quotas.write_text(FULL.replace('"be"', '"spot"'))
    done = site.run("apply")
    assert done.exit_code == ExitCode.FAILED
    assert "slurmdbd has no QoS 'spot' to preempt" in done.stderr
    assert site.calls == []


def test_a_slurmdbd_that_changes_nothing_and_says_nothing_is_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        commands, "change_accounting", lambda words: None if "DefaultQOS" in words[-1] else site.change(words)
    )
    done = site.run("apply")
    assert done.exit_code == ExitCode.FAILED
    assert "slurmdbd has other values; no change by: sacctmgr" in done.stderr


def test_render_prints_what_slurm_conf_lacks_until_it_is_merged(site: Site) -> None:
    printed = site.run("render")
    assert printed.exit_code == ExitCode.FOUND
    assert "AccountingStorageEnforce=associations,qos,limits\n" in printed.stdout
    assert "PriorityWeightFairshare=10000\n" in printed.stdout
    weights = "TRESBillingWeights=CPU=1.0,gres/gpu=1000,gres/shard=1.788909"
    assert f", line 4: in PartitionName=gpu write:\n{weights}\n" in printed.stdout
    assert "CPU have billing weights, too, and billing is the sum" in printed.stdout
    added = printed.stdout.partition(": add:\n")[2].partition("\n\n")[0]
    merged = CONF.replace("associations,qos", "associations,qos,limits").replace("=UP", f"=UP {weights}")
    site.slurm_conf.write_text(f"{merged}{added}\n")
    again = site.run("render")
    assert again.exit_code == ExitCode.DONE, again.stdout
    assert again.stdout.startswith(f"nothing to do: {site.slurm_conf} has all lines\n")


def test_render_needs_no_quotas_for_the_weights_of_slices(site: Site) -> None:
    site.quotas.unlink()
    printed = site.run("render")
    assert printed.exit_code == ExitCode.FOUND
    assert "gres/shard=1.788909" in printed.stdout
    assert "AccountingStorageEnforce" not in printed.stdout
    for words in (["show"], ["apply"], ["render", "--quotas", str(site.quotas)]):
        missing = site.run(*words)
        assert missing.exit_code == ExitCode.FAILED
        assert f"{site.quotas} cannot be read (No such file or directory)" in missing.stderr


@pytest.mark.parametrize(
    "words", [["show", "--dry-run"], ["render", "--dry-run"], ["apply", "--format", "json"], ["drop"]]
)
def test_options_of_another_action_are_refused(site: Site, words: list[str]) -> None:
    assert site.run(*words).exit_code == ExitCode.USAGE
    assert site.calls == []


def test_what_is_in_use_is_of_this_cluster_and_of_no_user() -> None:
    assert limits_view.billing_in_use(IN_USE, "demo") == {
        ("physics", "GrpTRES"): "996",
        ("physics", "GrpTRESMins"): "90000",
        ("guarantee-physics", "GrpTRES"): "498",
        ("guarantee-physics", "GrpTRESMins"): "0",
    }
    assert limits_view.billing_in_use("", "demo") == {}


def test_a_partition_of_several_models_and_one_that_slurm_conf_lacks_are_remarked() -> None:
    lines = [parse_line("slurm.conf", number, text) for number, text in logical_lines(CONF)]
    shards = {"gpu": [559, 158], "old": [158]}
    notes = quota_lines.remarks(Quotas(), shards, lines, settings_of(lines))
    assert notes == [
        "slurm.conf has no PartitionName=old, which [partitions.old] describes",
        "GPUs of partition gpu differ in size: a slice counts by its MiB, a whole GPU as one GPU whatever its model",
    ]


def test_fair_share_needs_limits_enforced() -> None:
    """Without them slurmctld hardly counts short jobs."""
    quotas = Quotas((Quota("physics", {"fairshare": "2"}),))
    merges = quota_lines.merge_lines(quotas, {}, SLURM_22_05, "slurm.conf")
    assert merges[0].lines == (
        "AccountingStorageEnforce=associations,limits",
        "PriorityType=priority/multifactor",
        "PriorityWeightFairshare=10000",
    )
