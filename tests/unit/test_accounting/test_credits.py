# SPDX-License-Identifier: Apache-2.0
"""Credits are known by their id: whatever else is edited, what is spent stays spent."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import credits
from hami_hpc.accounting.pricing.rates import Rates

from .samples import HOUR, Job, rates, write_export
from .test_commands import RATES, T0, _run, site

__all__ = ["site"]  # the fixture
D = Decimal
GRANT: dict[str, Any] = {"id": "grant", "account": "phys", "amount": D("300.00"), "note": "Grant 4711"}
TEXT = "0001-01-01/9999-12-31/300.00/Grant 4711"


def _rates(*granted: dict[str, Any]) -> Rates:
    return rates(credits=list(granted))


@pytest.mark.parametrize(
    "edit",
    [
        {"note": "Grant 4712"},
        {"note": ""},
        {"amount": D("300.10")},
        {"from": date(2026, 1, 1)},
        {"until": date(2027, 1, 1)},
        {"account": "chem"},
    ],
)
def test_an_edited_credit_is_the_same_credit(edit: dict[str, Any]) -> None:
    (credit,) = _rates({**GRANT, **edit}).credits
    uses = {("", "grant"): D("250.00")}
    assert credits.spent([credit], uses) == {"grant": D("250.00")}
    (use,) = credits.take([credit], date(2026, 9, 1), uses, D("1000.00"))
    assert D(use.amount) == credit.amount - 250


def test_two_equal_credits_are_two() -> None:
    found = _rates(GRANT, {**GRANT, "id": "again"}).credits
    taken = credits.take(found, date(2026, 9, 1), {("", "grant"): D(290)}, D(400))
    assert [(use.key, D(use.amount)) for use in taken] == [("again", D(300)), ("grant", D(10))]


def test_a_credit_lowered_below_what_is_spent_pays_nothing_and_shows_what_is_missing() -> None:
    found = _rates({**GRANT, "amount": 100})
    uses = {("", "grant"): D(250)}
    assert credits.take(found.credits, date(2026, 9, 1), uses, D(50)) == ()
    assert credits.balances(found, uses)[0].left == D(-150)


def test_what_invoices_of_before_the_ids_took_counts_for_the_credit_with_that_text() -> None:
    uses = {("phys", TEXT): D(120)}
    assert credits.spent(_rates(GRANT).credits, uses) == {"grant": D(120)}
    assert credits.unknown_uses(_rates(GRANT), uses) == ()
    assert credits.spent(_rates({**GRANT, "note": "new", "formerly": [TEXT]}).credits, uses) == {"grant": D(120)}
    # That another account's credit had the same text does not matter.
    assert credits.spent(_rates({**GRANT, "account": "chem"}).credits, uses) == {"grant": D(0)}


def test_two_credits_that_had_one_text_have_spent_together_what_is_spent_of_it() -> None:
    found = _rates(GRANT, {**GRANT, "id": "again"})
    assert credits.spent(found.credits, {("phys", TEXT): D(400)}) == {"grant": D(300), "again": D(100)}
    assert credits.spent(found.credits, {("phys", TEXT): D(700)}) == {"grant": D(300), "again": D(400)}
    named = _rates(GRANT, {**GRANT, "id": "again", "formerly": [TEXT]})
    assert credits.spent(named.credits, {("phys", TEXT): D(400)}) == {"grant": D(0), "again": D(400)}


def test_a_use_whose_credit_is_gone_is_named_with_what_to_do() -> None:
    edited = _rates({**GRANT, "note": "edited"})
    (fault,) = credits.unknown_uses(edited, {("phys", TEXT): D(120), ("", "grant"): D(1), ("", "gone"): D(0)})
    assert "took 120 from a credit of before credits had ids" in fault
    assert f'add formerly = ["{TEXT}"] to the [[credits]]' in fault
    (fault,) = credits.unknown_uses(edited, {("", "gone"): D(7)})
    assert "took 7 from the credit gone, which is not in rates.toml: put it back" in fault


def _granted(directory: Path, **edit: object) -> None:
    entry = {**GRANT, **edit}
    lines = [f"{key} = {value if isinstance(value, Decimal) else json.dumps(value)}" for key, value in entry.items()]
    (directory / "rates.toml").write_text(RATES + "[[credits]]\n" + "\n".join(lines) + "\n", encoding="utf-8")


def test_nobody_spends_a_credit_twice_by_editing_it_or_by_renaming_its_id(site: Path) -> None:
    """100 h in September and 100 in October, 250.00 each, and a grant of 300.00."""
    months = [T0, T0 + 30 * 24 * HOUR]
    write_export(site / "export", [Job(i, start, start, start + 100 * HOUR) for i, start in enumerate(months, 1)])
    store = ("--store", site / "store")
    assert _run("ingest", "--input", site / "export", *store).exit_code == 0
    _granted(site)
    words = ("--format", "json", *store)
    (first,) = json.loads(_run("invoice", "--month", "2026-09", *words).stdout)
    assert first["content"]["total"] == "0.00"
    _granted(site, id="renamed")
    refused = _run("invoice", "--month", "2026-10", "--draft", *words)
    assert (refused.exit_code, "took 250.00 from the credit grant" in refused.output) == (1, True)
    assert "took 250.00 from the credit grant" in _run("balances", *store).stderr
    _granted(site, note="Grant 4711, second year")
    (second,) = json.loads(_run("invoice", "--month", "2026-10", "--draft", *words).stdout)
    assert second["content"]["total"] == "200.00"


def test_a_credit_in_other_money_is_not_spent_anew_when_the_currency_changes(site: Path) -> None:
    """September in EUR takes 250.00 of 300.00; then rates.toml is in CHF."""
    months = [T0, T0 + 30 * 24 * HOUR]
    write_export(site / "export", [Job(i, start, start, start + 100 * HOUR) for i, start in enumerate(months, 1)])
    store = ("--store", site / "store")
    assert _run("ingest", "--input", site / "export", *store).exit_code == 0
    _granted(site)
    assert _run("invoice", "--month", "2026-09", *store).exit_code == 0
    text = (site / "rates.toml").read_text(encoding="utf-8")
    (site / "rates.toml").write_text('currency = "CHF"\n' + text, encoding="utf-8")
    refused = _run("invoice", "--month", "2026-10", "--draft", *store)
    assert refused.exit_code == 1
    assert "invoices in EUR took from the credit grant, and rates.toml is in CHF: remove it" in refused.output
    text = (site / "rates.toml").read_text(encoding="utf-8").replace('"grant"', '"grant-chf"')
    (site / "rates.toml").write_text(text, encoding="utf-8")
    (october,) = json.loads(_run("invoice", "--month", "2026-10", "--draft", "--format", "json", *store).stdout)
    assert (october["content"]["total"], october["content"]["currency"]) == ("0.00", "CHF")
    september = _run("invoice", "--month", "2026-09", *store)
    assert "stands with EUR 0.00; by today's records and rates it would be CHF 0.00: --draft" in september.stderr
