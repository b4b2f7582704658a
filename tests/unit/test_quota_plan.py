# SPDX-License-Identifier: Apache-2.0
"""quotas.toml, the weights of slices, and the commands that bring slurmdbd to the quotas."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_qos_plan import Slurmdbd

from hami_hpc.core import qos, quota
from hami_hpc.core.qos import NONE, Command
from hami_hpc.core.quota import Association, Present, Quotas
from hami_hpc.errors import NodeError
from hami_hpc.node.quota_settings import read_quotas

FULL = """\
version = 1
borrowers = ["be"]
[accounts.physics]
fairshare = 20
gpus = 1.5
gpu_hours = 100
gpus_per_job = "none"
guaranteed_gpus = 0.5
[accounts.vision]
fairshare = 10
"""


class Accounts(Slurmdbd):
    """slurmdbd with a cluster's accounts and users.

    A user has the account's QoS, or a list of his own; sacctmgr shows the same of both.
    """

    def __init__(self, tree: Mapping[str, str], users: Mapping[tuple[str, str], str | None]) -> None:
        super().__init__(normal=(), be=())
        self.parents = dict(tree)
        self.limits: dict[str, dict[str, str]] = {name: {"Fairshare": "1"} for name in tree}
        self.lists: dict[tuple[str, str], set[str] | None] = {(name, ""): None for name in tree}
        self.lists |= {at: None if own is None else set(own.split(",")) for at, own in users.items()}
        self.defaults: dict[tuple[str, str], str] = {}

    def allowed(self, account: str, user: str) -> set[str]:
        own = self.lists[account, user]
        if own is not None:
            return own
        if user:
            return self.allowed(account, "")
        parent = self.parents[account]
        return self.allowed(parent, "") if parent else {"normal", "be"}

    def all(self) -> Present:
        rows = []
        for (account, user), _ in self.lists.items():
            row = dict.fromkeys(quota.COLUMNS, "") | (self.limits[account] if not user else {"Fairshare": "1"})
            row |= {"Account": account, "User": user, "ParentName": "" if user else self.parents[account]}
            row |= {"QOS": ",".join(sorted(self.allowed(account, user)))}
            row |= {"DefaultQOS": self.defaults.get((account, user), self.defaults.get((account, ""), ""))}
            rows.append(quota.read_association(row))
        return Present(tuple(rows), self.present())

    def run(self, command: Command) -> None:
        if command[1] == "qos":
            super().run(command)
            return
        verb, what, where, *words = command
        assert (verb, where) == ("modify", "where")
        at = words.index("set")
        named = dict(word.split("=") for word in words[:at])
        assert named.pop("cluster") == "demo"
        account, user = (named["name"], "") if what == "account" else (named["account"], named["name"])
        for word in words[at + 1 :]:
            self.change(account, user, *word.split("=", 1))

    def change(self, account: str, user: str, option: str, value: str) -> None:
        if option == "qos+":
            assert value in self.rows, "there is no such QoS"
            self.lists[account, user] = self.allowed(account, user) | {value}
        elif option == "DefaultQOS":
            below = self.all().below(account)
            if value in self.allowed(account, user) and all(value in row.qos for row in below):
                self.defaults[account, user] = value
            # Otherwise sacctmgr 22.05 says so, changes nothing, and ends with status 0.
        else:
            limit = next(entry for entry in quota.LIMITS if entry.option == option)
            held = self.limits[account]
            held[limit.column] = value.removesuffix("billing=-1")


def read(folder: Path, text: str) -> Quotas:
    path = folder / "quotas.toml"
    path.write_text(text)
    return read_quotas(path)


def bring(slurmdbd: Accounts, wanted: Quotas) -> list[str]:
    """Runs plan after plan, as apply does; returns the commands."""
    done: list[str] = []
    for _ in range(6):
        planned = quota.plan(wanted, slurmdbd.all(), "demo")
        if not planned:
            return done
        for command in planned:
            slurmdbd.run(command)
            done.append(qos.line(command).removeprefix("sacctmgr --immediate "))
    raise AssertionError(done)


SITE = {"root": "", "physics": "root", "optics": "physics", "vision": "root"}


def test_from_nothing_the_account_gets_its_limits_and_a_qos_of_its_own(tmp_path: Path) -> None:
    slurmdbd = Accounts(SITE, {("physics", "ann"): None, ("optics", "bob"): None})
    wanted = read(tmp_path, FULL)
    assert bring(slurmdbd, wanted) == [
        "add qos name=guarantee-physics GrpTRES=billing=500",
        "modify qos where name=guarantee-physics set Preempt=be",
        "modify account where name=physics cluster=demo set "
        "Fairshare=20 GrpTRES=billing=1500 GrpTRESMins=billing=6000000",
        "modify account where name=physics cluster=demo set qos+=guarantee-physics",
        "modify account where name=vision cluster=demo set Fairshare=10",
        "modify account where name=physics cluster=demo set DefaultQOS=guarantee-physics",
    ]
    assert not any(row.differs for row in quota.compare(wanted, slurmdbd.all()))


def test_users_and_accounts_below_with_lists_of_their_own_get_the_qos_before_it_is_the_default(tmp_path: Path) -> None:
    slurmdbd = Accounts(SITE, {("physics", "ann"): "be,normal", ("optics", "bob"): "normal", ("optics", "eve"): None})
    slurmdbd.lists["optics", ""] = {"normal"}
    assert bring(slurmdbd, read(tmp_path, FULL))[-4:] == [
        "modify account where name=optics cluster=demo set qos+=guarantee-physics",
        "modify user where name=ann account=physics cluster=demo set qos+=guarantee-physics",
        "modify user where name=bob account=optics cluster=demo set qos+=guarantee-physics",
        "modify account where name=physics cluster=demo set DefaultQOS=guarantee-physics",
    ]
    assert slurmdbd.lists["optics", "eve"] is None, "she has her account's"
    assert slurmdbd.defaults == {("physics", ""): "guarantee-physics"}


def test_other_limits_and_accounts_stay_and_none_takes_one_away(tmp_path: Path) -> None:
    slurmdbd = Accounts(SITE, {})
    slurmdbd.limits["physics"]["MaxTRES"] = "billing=1000"
    slurmdbd.limits["vision"]["GrpTRES"] = "cpu=4,billing=2000"
    done = bring(slurmdbd, read(tmp_path, 'version = 1\n[accounts.physics]\ngpus_per_job = "none"\n'))
    assert done == ["modify account where name=physics cluster=demo set MaxTRESPerJob=billing=-1"]
    vision = slurmdbd.all().account("vision")
    assert vision is not None
    assert vision.values["gpus"] == "2000"


def test_the_comparison_is_in_gpus_and_gpu_hours(tmp_path: Path) -> None:
    slurmdbd = Accounts(SITE, {})
    wanted = read(tmp_path, FULL)
    slurmdbd.limits["physics"] |= {"GrpTRES": "billing=2500,cpu=3", "GrpTRESMins": "billing=90000"}
    rows = {(row.account, row.key): (row.quotas, row.slurmdbd) for row in quota.compare(wanted, slurmdbd.all())}
    assert rows["physics", "gpus"] == ("1.5", "2.5")
    assert rows["physics", "gpu_hours"] == ("100", "1.5")
    assert rows["physics", "guaranteed_gpus"] == ("0.5", None)
    assert rows["vision", "fairshare"] == ("10", "1")


def test_an_account_that_slurmdbd_lacks_is_named(tmp_path: Path) -> None:
    slurmdbd = Accounts({"root": "", "vision": "root"}, {})
    wanted = read(tmp_path, FULL)
    assert quota.unknown_accounts(wanted, slurmdbd.all()) == ["physics"]


def test_remarks_name_guarantees_that_cannot_be_kept_and_who_does_not_use_theirs(tmp_path: Path) -> None:
    slurmdbd = Accounts(SITE, {("physics", "ann"): "normal"})
    slurmdbd.lists["physics", ""] = {"normal"}
    slurmdbd.defaults["physics", "ann"] = "normal"
    wanted = read(
        tmp_path, FULL.replace("gpus = 1.5", "gpus = 9").replace("guaranteed_gpus = 0.5", "guaranteed_gpus = 4.5")
    )
    notes = "\n".join(quota.remarks(wanted, slurmdbd.all(), 4))
    assert "4.5 GPUs are guaranteed and the cluster has 4" in notes
    assert "jobs of QoS normal are not preempted" in notes
    assert "account physics may not use QoS be, so its jobs cannot borrow" in notes
    assert "ann of account physics have a default QoS of their own" in notes
    assert quota.remarks(read(tmp_path, "version = 1\n[accounts.physics]\ngpus = 1\n"), slurmdbd.all(), 4) == []


def test_a_guarantee_that_is_gone_from_the_file_is_named(tmp_path: Path) -> None:
    slurmdbd = Accounts(SITE, {})
    wanted = read(tmp_path, FULL)
    bring(slurmdbd, wanted)
    assert quota.unused(wanted, slurmdbd.all()) == []
    assert quota.unused(read(tmp_path, "version = 1\n"), slurmdbd.all()) == ["guarantee-physics"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "version = 1 must be there"),
        ("version = 2\n", "version = 1 must be there (found: 2)"),
        ("version = true\n", "version = 1 must be there"),
        ("version = 1\nborrower = ['be']\n", "did you mean borrowers?"),
        ("version = 1\nborrowers = ['BE']\n", "a list of QoS in small letters"),
        ("version = 1\nborrowers = ['guarantee-x']\n", "none that begins with guarantee-"),
        ("version = 1\n[accounts.Physics]\n", "small letters (as Slurm keeps them)"),
        ("version = 1\n[accounts.physics]\ngpu = 1\n", "did you mean gpus?"),
        ("version = 1\n[accounts.physics]\ngpus = -1\n", "gpus = '-1' is not understood; allowed is a number from 0"),
        ("version = 1\n[accounts.physics]\ngpus = 0.0001\n", "three digits behind the point"),
        ("version = 1\n[accounts.physics]\ngpus = inf\n", "gpus = 'Infinity' is not understood"),
        ("version = 1\n[accounts.physics]\ngpus = nan\n", "gpus = 'NaN' is not understood"),
        ("version = 1\n[accounts.physics]\ngpus = '2'\n", "gpus = '2' is not understood"),
        ("version = 1\n[accounts.physics]\ngpus = true\n", "gpus = 'True' is not understood"),
        ("version = 1\n[accounts.physics]\ngpus = 1e300\n", "is not understood"),
        ("version = 1\n[accounts.physics]\nfairshare = 1.5\n", "a whole number from 0"),
        ("version = 1\n[accounts.physics]\nfairshare = 2147483647\n", "a whole number from 0"),
        ("version = 1\n[accounts.physics]\nguaranteed_gpus = 1\n", "guaranteed_gpus needs borrowers"),
        ("version = 1\nborrowers = ['be']\n[accounts.physics]\nguaranteed_gpus = 'none'\n", "leave the line out"),
        (
            "version = 1\nborrowers = ['be']\n[accounts.physics]\ngpus = 1\nguaranteed_gpus = 2\n",
            "guaranteed_gpus = '2' is not understood; allowed is at most gpus, 1",
        ),
        ("version = 1\n[accounts]\nphysics = 3\n", "table [accounts.physics] is not a table"),
        ("version = 1\naccounts = 3\n", "table [accounts] is not a table"),
        ("version = \n", "is not TOML"),
        ("\udcff", "is not TOML"),
        ("\ufeffversion = 1\n", "begins with a byte order mark, which TOML does not have"),
        (f"version = {'9' * 5000}\n", "is not TOML"),
        (f"version = {'[' * 5000}\n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_what_is_allowed(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(NodeError) as raised:
        read_quotas(path)
    assert str(raised.value).startswith(str(path))
    assert words in str(raised.value)


def test_root_reads_only_quotas_that_root_alone_can_write(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text(FULL)
    path.chmod(0o664)
    with pytest.raises(NodeError, match="settings that root alone can write"):
        read_quotas(path)
    path.chmod(0o644)
    os.chown(path, 65534, 65534)
    with pytest.raises(NodeError, match="belongs to uid 65534"):
        read_quotas(path)


def test_a_pipe_or_a_directory_in_the_place_of_the_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    ends = threading.Timer(2.0, os.close, (writer,))  # for one who reads it
    ends.start()
    for path, words in ((tmp_path / "pipe", "is not a regular file of at most"), (tmp_path, "cannot be read")):
        with pytest.raises(NodeError, match=words):
            read_quotas(path)
    ends.join()


def test_a_file_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"docs/quotas\.md"):
        read_quotas(tmp_path / "quotas.toml")


@given(shards=st.integers(1, 600_000))
def test_all_shards_of_a_gpu_weigh_as_much_as_the_gpu_and_none_weighs_less_than_its_part(shards: int) -> None:
    weight = float(quota.billing_weight(shards))  # Slurm reads a double, and drops what is behind the point
    assert int(weight * shards) == quota.GPU_WEIGHT
    half = shards // 2
    assert half * quota.GPU_WEIGHT // shards <= int(weight * half) <= half * quota.GPU_WEIGHT // shards + 1


def test_a_partitions_other_weights_stay_and_the_largest_model_decides() -> None:
    assert quota.billing_weights([559, 158], "CPU=1.0,GRES/gpu=7,Mem=0.25G") == (
        "CPU=1.0,Mem=0.25G,gres/gpu=1000,gres/shard=1.788909"
    )


def test_an_association_without_limits_has_none() -> None:
    row = dict.fromkeys(quota.COLUMNS, "") | {"Account": "a", "Fairshare": "parent", "GrpTRES": "cpu=1"}
    read_row = quota.read_association(row)
    assert isinstance(read_row, Association)
    assert read_row.values == {"fairshare": "parent", "gpus": NONE, "gpu_hours": NONE, "gpus_per_job": NONE}
