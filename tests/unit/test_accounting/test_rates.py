# SPDX-License-Identifier: Apache-2.0
"""rates.toml: each key arrives where it belongs, and what cannot be is refused by table and key."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.cluster_gpus import GpuModel
from hami_hpc.accounting.pricing.rates import Credit, Discount, Factor, Quota, Rate, Rates, Terms, Validity
from hami_hpc.accounting.pricing.rates_file import ENDED_STATES, load_rates, parse_rates

EVERYTHING = """
version = 1
currency = "CHF"
digits = 4
timezone = "Europe/Berlin"
issuer = ["We", "Here"]
invoice_prefix = "A-1"
[[rates]]
model = "h200"
per_gpu_hour = 1000000
from = 2026-01-01
until = 2027-01-01
[[factors]]
class = "lc"
mode = "mig"
user = "ann"
factor = 1.500001
[[terms]]
minimum_s = 86400
suspended_factor = 0.25
unbilled_states = ["NODE_FAIL"]
unbilled_disturbed = true
unbilled_gpu_fault = true
[[discounts]]
account = "chem"
from_gpu_hours = 10.5
percent = 100
[[credits]]
id = "gift-1"
account = "chem"
amount = 5
note = "gift"
formerly = ["a/b/5/gift"]
[[quotas]]
user = "ann"
gpu_hours = 0.0001
[gpus.h200]
total_mib = 1
mig_slices = 64
mig_memory_slices = 1
aliases = ["nvidia_h200", "big"]
nodes = "gpu[1-2]"
count = 1
[gpus.a100]
total_mib = 81559
[partitions.gpu]
gpu_models = ["h200", "a100"]
"""
ALWAYS = Validity(date.min, date.max)


def rates(text: str) -> Rates:
    return parse_rates(tomllib.loads(text, parse_float=Decimal), "rates.toml")


def test_every_key_arrives_where_it_belongs() -> None:
    found = rates(EVERYTHING)
    assert (found.currency, found.digits, found.timezone, found.issuer) == ("CHF", 4, "Europe/Berlin", ("We", "Here"))
    assert found.invoice_prefix == "A-1"
    year = Validity(date(2026, 1, 1), date(2027, 1, 1))
    assert found.rates == (Rate("h200", Decimal(1000000), year),)
    where = {"user": "ann", "mode": "mig", "class": "lc"}
    assert found.factors == (Factor(where, Decimal("1.500001"), ALWAYS),)
    assert found.terms == (Terms(86400, Decimal("0.25"), Decimal(1), ("NODE_FAIL",), True, True, ALWAYS),)
    assert found.discounts == (Discount("chem", Decimal("10.5"), Decimal(100), ALWAYS),)
    assert found.credits == (Credit("gift-1", "chem", Decimal(5), "gift", ALWAYS, ("a/b/5/gift",)),)
    assert found.quotas == (Quota("", "ann", Decimal("0.0001"), ALWAYS),)
    assert found.models == {"h200": GpuModel("h200", 1, 64, 1), "a100": GpuModel("a100", 81559, 7, 8)}
    assert found.partitions == {"gpu": ("h200", "a100")}
    assert found.nodes == {"gpu1": "h200", "gpu2": "h200"}
    assert found.gpu_counts == {"h200": 1}
    assert found.aliases == {"nvidia_h200": "h200", "big": "h200"}


def test_a_time_that_begins_when_another_ends_does_not_overlap_it() -> None:
    first, second = Validity(date(2026, 1, 1), date(2026, 2, 1)), Validity(date(2026, 2, 1), date(2026, 3, 1))
    assert not first.overlaps(second)
    assert not second.overlaps(first)
    assert first.overlaps(Validity(date(2026, 1, 31), date(2026, 2, 2)))


def test_a_scaling_has_at_most_six_digits() -> None:
    text = "version = 1\n[[geometry]]\nshard_mib = 256\nmemory_scaling = 0.{}\n"
    assert rates(text.format("500001")).geometry[0].geometry.memory_scaling == 0.500001
    with pytest.raises(AccountingError, match=r"memory_scaling = '0\.5000001'"):
        rates(text.format("5000001"))
    assert rates(text.replace("0.{}", "3")).geometry[0].geometry.memory_scaling == 3.0
    with pytest.raises(AccountingError, match=r"memory_scaling = '3\.1'.* from 0\.1 to 3"):
        rates(text.replace("0.{}", "3.1"))


def test_what_is_left_out_has_its_default() -> None:
    found = rates("version = 1\n[[terms]]\n")
    assert (found.currency, found.digits, found.timezone, found.issuer) == ("EUR", 2, "UTC", ())
    assert found.invoice_prefix == "GPU"
    assert found.terms == (Terms(0, Decimal(0), Decimal(1), (), False, False, ALWAYS),)
    assert (found.rates, found.factors, found.discounts, found.credits, found.quotas) == ((),) * 5
    assert (found.models, found.partitions, found.nodes, found.gpu_counts, found.aliases) == ({},) * 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rates.toml needs version = 1; this hami_hpc reads no other version"),
        ("version = 2", "rates.toml needs version = 1; this hami_hpc reads no other version"),
        ('currency = "euro"', "rates.toml: currency = 'euro'; allowed is a text like [A-Z]{3}"),
        ('issuer = "' + "E" * 50 + '"', f"rates.toml: issuer = '{'E' * 40}'; allowed is a list of texts"),
        (
            "[partitions.old]\nshards_per_gpu = 0",
            "rates.toml, [partitions.old]: shards_per_gpu = '0'; allowed is a whole number from 1 to 1000000",
        ),
        (
            'currency = "JPY"',
            "rates.toml: digits is missing, and two are not those of JPY: write digits = 0, or 2 for amounts that are "
            "as before",
        ),
        ("digits = 5", "rates.toml: digits = '5'; allowed is a whole number from 0 to 4"),
        ("digits = -1", "rates.toml: digits = '-1'; allowed is a whole number from 0 to 4"),
        ("digits = true", "rates.toml: digits = 'True'; allowed is a whole number from 0 to 4"),
        ('timezone = "Moon"', "rates.toml: timezone = 'Moon'; allowed is a zone such as Europe/Berlin"),
        ('issuer = ["a", ""]', "rates.toml: issuer = \"['a', '']\"; allowed is a list of texts"),
        ('issuer = "a"', "rates.toml: issuer = 'a'; allowed is a list of texts"),
        ("curency = 1", "rates.toml: unknown key 'curency'; did you mean currency?"),
        (
            f"{'x' * 50} = 1",
            f"rates.toml: unknown key '{'x' * 40}'; known: budgets, credit_rules, credits, currency, digits, "
            "discounts, factors, geometry, gpus, invoice_prefix, issuer, partitions, quotas, rates, resources, terms, "
            "timezone, version, windows",
        ),
        ("rates = 1", "rates.toml: rates = '1'; allowed is tables, each under [[rates]]"),
        ("rates = [1]", "rates.toml, [[rates]] number 1 is not a table"),
        ("[[rates]]", "rates.toml, [[rates]] number 1: model is missing; allowed is the name of a GPU model"),
        ('[[rates]]\nmodel = "a"', "number 1: per_gpu_hour is missing; allowed is a number from 0 to 1000000"),
        ('[[rates]]\nmodel = "a"\nper_gpu_hour = "1"', "per_gpu_hour = '1'; allowed is a number from 0 to 1000000"),
        ('[[rates]]\nmodel = "a"\nper_gpu_hour = nan', "per_gpu_hour = 'NaN'; allowed is a number from 0 to 1000000"),
        (
            '[[rates]]\nmodel = "a"\nper_gpu_hour = 0.0000001',
            "allowed is a number from 0 to 1000000 with at most 6 digits after the point",
        ),
        ('[[rates]]\nmodel = "a"\nper_gpu_hour = 1000000.1', "number from 0 to 1000000 with at most 6 digits"),
        ('[[rates]]\nmodel = "a"\nper_gpu_hour = 1\nfrom = "2026"', "from = '2026'; allowed is a date such as 2026"),
        (
            '[[rates]]\nmodel = "a"\nper_gpu_hour = 1\nfrom = 2026-01-02\nuntil = 2026-01-02',
            "from 2026-01-02 is not before until 2026-01-02",
        ),
        ('[[rates]]\nmodel = "a"\nper_gpu_hour = 1\n' * 2, "two [[rates]] a are valid on 0001-01-01; set from and"),
        ("[[terms]]\n[[terms]]\nfrom = 2026-05-01", "rates.toml: two [[terms]]  are valid on 2026-05-01; set from"),
        (
            "[[factors]]\nfactor = 1",
            "[[factors]] number 1: has no condition; give one or more of cluster, account, user",
        ),
        (
            '[[factors]]\nclass = "X"\nfactor = 1',
            "class = 'X'; allowed is the name of a class of service, as",
        ),
        ('[[factors]]\nmode = "x"\nfactor = 1', "mode = 'x'; allowed is "),
        ('[[factors]]\nuser = "x"\nfactor = 1001', "factor = '1001'; allowed is a number from 0 to 1000"),
        ("[[terms]]\nminimum_s = 86401", "minimum_s = '86401'; allowed is a whole number from 0 to 86400"),
        ("[[terms]]\nsuspended_factor = 1.1", "suspended_factor = '1.1'; allowed is a number from 0 to 1"),
        ('[[terms]]\nsuspended_factor = "half"', "suspended_factor = 'half'; allowed is a number from 0 to 1"),
        ("[[terms]]\nunbilled_disturbed = 1", "number 1: unbilled_disturbed = '1'; allowed is true or false"),
        ("[[terms]]\nunbilled_disturbd = true", "unknown key 'unbilled_disturbd'; did you mean unbilled_disturbed?"),
        ("[[discounts]]\nfrom_gpu_hours = 1\npercent = 101", "percent = '101'; allowed is a number from 0 to 100"),
        (
            "[[discounts]]\nfrom_gpu_hours = 1\npercent = 1\n" * 2,
            "rates.toml: two [[discounts]]  1 are valid on 0001-01-01; set from and until",
        ),
        ('[[credits]]\nid = "a"\namount = 1', "[[credits]] number 1: account is missing; allowed is the account that"),
        ('[[credits]]\naccount = "a"\namount = 1', "[[credits]] number 1: id is missing; allowed is a name that stays"),
        ('[[credits]]\nid = "a/b"\naccount = "a"\namount = 1', "number 1: id = 'a/b'; allowed is a text like [A-Z"),
        ('[[credits]]\nid = "a"\naccount = "a"\namount = 1\n' * 2, "two [[credits]] have the id a; give each an id"),
        (
            '[[credits]]\nid = "a"\naccount = "a"\namount = 1.005',
            "rates.toml: the credit a has amount = 1.005; digits = 2 allows 2 digits after the point",
        ),
        ("[[quotas]]\ngpu_hours = 1", "rates.toml, [[quotas]] number 1: give either account or user"),
        ('[[quotas]]\nuser = "a"\naccount = "b"\ngpu_hours = 1', "number 1: give either account or user"),
        ('[[quotas]]\nuser = "a"\ngpu_hours = 0', "gpu_hours = '0'; allowed is a number from 0.0001 to 1000000000"),
        ("gpus = 1", "rates.toml, [gpus] is not a table"),
        ("[gpus.h200]", "rates.toml, [gpus.h200]: total_mib is missing; allowed is a whole number from 1 to"),
        (
            "[gpus.h200]\ntotal_mib = 1\ncount = -1",
            "[gpus.h200]: count = '-1'; allowed is a whole number from 1 to 1000000",
        ),
        ("[gpus.h200]\ntotal_mib = 1\nmig_slices = 65", "mig_slices = '65'; allowed is a whole number from 1 to 64"),
        (
            '[gpus.h200]\ntotal_mib = 1\nnodes = "a[2-1]"',
            "nodes = 'a[2-1]'; allowed is a host list such as gpu[01-16]: ",
        ),
        ("[gpus.h200]\ntotal_mb = 1", "rates.toml, [gpus.h200]: unknown key 'total_mb'; did you mean total_mib?"),
        ("[partitions.gpu]\nmodels = 1", "[partitions.gpu]: unknown key 'models'; did you mean gpu_models?"),
        (
            '[[credits]]\nid = "a"\naccount = "a"\namount = 1\nfrom = 2026-10-15',
            "[[credits]] number 1: from = '2026-10-15'; allowed is the first day of a month, such as 2026-11-01: ",
        ),
        (
            '[[credits]]\nid = "a"\naccount = "a"\namount = 1\nuntil = 2026-12-31',
            "until = '2026-12-31'; allowed is the first day ",
        ),
        ("[[discounts]]\nfrom_gpu_hours = 1\npercent = 1\nfrom = 2026-10-02", "allowed is the first day of a month"),
        ('[[quotas]]\nuser = "a"\ngpu_hours = 1\nuntil = 2026-10-02', "allowed is the first day of a month"),
        ('[[quotas]]\nuser = "a"\ngpu_hours = 1\nuntil = 9999-12-30', "allowed is the first day of a month"),
        (
            "[[discounts]]\nfrom_gpu_hours = 1000\npercent = 5\n[[discounts]]\nfrom_gpu_hours = 1000.0\npercent = 7",
            "two [[discounts]]  1000 are valid on 0001-01-01",
        ),
        (
            '[[terms]]\nunbilled_states = ["TIMEOUT", "node_fail"]',
            "[[terms]] number 1: 'node_fail' in unbilled_states is no state that ends a run; did you mean NODE_FAIL?",
        ),
        ('[[terms]]\nunbilled_states = ["X"]', "is no state that ends a run; known: BOOT_FAIL, CANCELLED, COMPLETED"),
        ('[[terms]]\nunbilled_states = ["CANCELLED by 1000"]', "did you mean CANCELLED?"),
        ('[[terms]]\nunbilled_states = ["RUNNING"]', "'RUNNING' in unbilled_states is no state that ends a run"),
        (
            '[gpus.a]\ntotal_mib = 1\nnodes = "n[1-4]"\n[gpus.b]\ntotal_mib = 1\nnodes = "n4,n5"',
            "rates.toml: node n4 is under two models, [gpus.a] and [gpus.b]",
        ),
        (
            '[gpus.a]\ntotal_mib = 1\naliases = ["big"]\n[gpus.b]\ntotal_mib = 1\naliases = ["big"]',
            "rates.toml: alias big is under two models, [gpus.a] and [gpus.b]",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_table_and_key(text: str, message: str) -> None:
    with pytest.raises(AccountingError) as caught:
        rates(text if not text or text.startswith("version") else f"version = 1\n{text}")
    assert message in str(caught.value)


def test_what_is_wrong_in_a_file_is_said_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text("version = 9\n")
    with pytest.raises(AccountingError) as caught:
        load_rates(path)
    assert str(caught.value) == f"{path} needs version = 1; this hami_hpc reads no other version"


def test_a_file_of_more_than_8_mib_is_no_file_of_rates(tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    text = "version = 1\n#"
    path.write_text(text + "x" * ((8 << 20) - len(text)))
    assert load_rates(path) == rates("version = 1")
    with path.open("a") as file:
        file.write("x")
    with pytest.raises(AccountingError, match=r"rates\.toml is longer than 8 MiB; give another with --rates"):
        load_rates(path)


def test_dates_of_rates_factors_and_terms_may_be_any_day() -> None:
    """They act on their day: a bill is split there. Discounts, credits and quotas act on whole months."""
    day = "from = 2026-10-15\nuntil = 2026-10-16\n"
    entries = ('[[rates]]\nmodel = "a"\nper_gpu_hour = 1\n', '[[factors]]\nuser = "x"\nfactor = 1\n', "[[terms]]\n")
    found = rates("version = 1\n" + "".join(entry + day for entry in entries))
    valid = [entry.valid for entry in found.rates] + [entry.valid for entry in found.factors]
    assert {*valid, *(entry.valid for entry in found.terms)} == {Validity(date(2026, 10, 15), date(2026, 10, 16))}


def test_first_days_of_months_one_node_named_twice_and_every_state_are_allowed() -> None:
    states = ", ".join(f'"{state}"' for state in ENDED_STATES)
    found = rates(
        'version = 1\n[[credits]]\nid = "a"\naccount = "a"\namount = 1\nfrom = 2026-10-01\nuntil = 2026-12-01\n'
        '[gpus.a]\ntotal_mib = 1\nnodes = "n1,n1"\n'
        f"[[terms]]\nunbilled_states = [{states}]\n"
    )
    assert found.credits[0].valid == Validity(date(2026, 10, 1), date(2026, 12, 1))
    assert found.nodes == {"n1": "a"}
    assert not set(ENDED_STATES) & {"RUNNING", "PENDING", "SUSPENDED"}


def test_the_example_holds_with_all_that_is_commented_out_of_it() -> None:
    text = (Path(__file__).resolve().parents[3] / "accounting" / "rates.toml").read_text(encoding="utf-8")
    found = rates(re.sub(r"^# (\[\[\w+\]\]|\w+ = [^a-z\n].*)$", r"\1", text, flags=re.MULTILINE))
    assert [entry.name for entry in found.windows] == ["night"]
    assert [entry.resource for entry in found.resources] == ["cpu", "mem", "license/matlab"]
    assert [entry.on for entry in found.credit_rules] == ["node_fault", "slo_miss"]
    assert (len(found.budgets), len(found.geometry), found.terms[1].where) == (1, 1, {"mode": "mig"})
    assert found.rates[-1].where == {"partition": "interactive"}
