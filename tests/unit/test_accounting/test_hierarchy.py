# SPDX-License-Identifier: Apache-2.0
"""The tree of accounts: read or refused in one line, each level the sum of those below; pages of users."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hami_hpc.accounting.documents import hierarchy
from hami_hpc.accounting.documents.hierarchy import Row, Share
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources import account_tree

from .samples import HOUR, VGPU_HALF, Job, fill, run, write_settings
from .test_efficiency import _record, _spool
from .test_pages import TELEPHONE_PX, _browse, _measure, needs_browser

T0 = 1_788_220_800
ARABIC, CHINESE = "مختبر-الفيزياء", "物理研究所-量子計算組"
MARKUP = '<script>alert("x")</script>&amp;'
TREE = f"""Cluster|Account|Par Name|User
c1|root||
c1|root||root
c1|science|root|
c1|phys|science|
c1|phys||ann
c1|{ARABIC}|phys|
c1|{CHINESE}|science|
c1|chem|science|
c1|idle|root|
"""
JOBS = [
    Job(1, start=T0, submit=T0, end=T0 + 100, account="phys", user="ann"),
    Job(2, start=T0, submit=T0, end=T0 + 100, account=ARABIC, user="محمد"),
    Job(3, start=T0, submit=T0, end=T0 + 7 * HOUR, account=CHINESE, user="王小明"),
    Job(4, start=T0, submit=T0, end=T0 + 3 * HOUR + 1, account="chem", user=MARKUP, tres=VGPU_HALF),
    Job(5, start=T0, submit=T0, end=T0 + HOUR, account="deleted", user="x" * 10240),
    Job(6, start=T0, submit=T0, end=T0 + HOUR, account="phys", user="../../etc/passwd\x1b[31m"),
    Job(7, start=T0, submit=T0, end=T0 + HOUR, account="phys", user="王小明"),
]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    write_settings(tmp_path)
    (tmp_path / "rates.toml").write_text(
        'version = 1\nissuer = ["Centre"]\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 2.5\n', encoding="utf-8"
    )
    (tmp_path / "tree").write_text(TREE, encoding="utf-8")
    fill(tmp_path / "store", JOBS)
    _spool(tmp_path / "spool", _record(4, T0, T0 + 3 * HOUR))
    assert run(tmp_path, "collect-usage", "--input", str(tmp_path / "spool"), "--clusters", "c1").exit_code == 0
    return tmp_path


def report(site: Path, *more: str) -> str:
    result = run(site, "report", "--month", "2026-09", "--output", str(site / "r.html"), *more)
    assert result.exit_code == 0, result.output
    return (site / "r.html").read_text(encoding="utf-8")


def _share(account: str, user: str, hours: str, cluster: str = "c1") -> Share:
    return Share(cluster, account, user, 1, Decimal(hours), Decimal(hours) * 2)


def _nested(rows: list[Row]) -> list[tuple[int, str, Decimal]]:
    depth, found = 0, []
    for row in rows:
        found.append((depth, row.label, row.hours))
        depth += row.opens - row.closes
    assert depth == 0
    return found


def test_each_level_is_the_sum_of_those_below_and_idle_accounts_are_left_out() -> None:
    tree = account_tree.parse(TREE, "tree")
    shares = [_share("phys", "ann", "1.50"), _share(ARABIC, "bob", "2"), _share("chem", "eve", "0.25")]
    rows = hierarchy.rows([*shares, _share("gone", "x", "1")], tree)
    assert _nested(rows) == [
        (0, "root", Decimal("3.75")),
        (1, "science", Decimal("3.75")),
        (2, "phys", Decimal("3.50")),
        (3, ARABIC, Decimal("2")),
        (4, "bob", Decimal("2")),
        (3, "ann", Decimal("1.50")),
        (2, "chem", Decimal("0.25")),
        (3, "eve", Decimal("0.25")),
        (0, hierarchy.NOT_IN_TREE, Decimal("1")),
        (1, "gone", Decimal("1")),
        (2, "x", Decimal("1")),
    ]
    assert [row.percent for row in rows if not row.is_user][:2] == [Decimal("78.9")] * 2


def test_several_clusters_are_the_first_level_and_one_accounts_name_may_be_in_both() -> None:
    tree = account_tree.parse("c1|a|root|\nc2|a||\n", "tree")
    rows = hierarchy.rows([_share("a", "u", "1"), _share("a", "u", "2", "c2")], tree)
    assert [entry[:2] for entry in _nested(rows)] == [
        (0, "c2"), (1, "a"), (2, "u"), (0, "c1"), (1, "root"), (2, "a"), (3, "u"),
    ]  # fmt: skip


def test_many_users_of_an_account_have_a_line_for_the_others_and_nothing_is_lost() -> None:
    shares = [_share("a", f"u{number}", "1.25") for number in range(2000)]
    rows = hierarchy.rows(shares, {})
    assert len(rows) == 1 + hierarchy.MOST_USERS + 1
    assert sum(row.hours for row in rows if row.is_user) == rows[0].hours == Decimal("2500.00")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no account"),
        ("c1|a\n", "line 1: 'c1|a' is not Cluster"),
        ("c1|a|b|c|d\n", "is not Cluster"),
        ("\x00\x1b[2J|||\n", "is not Cluster"),
        ("|a||\n", "is not Cluster"),
        ("c1|a|a|\n", "are above themselves: a > ..."),
        ("c1|a|b|\nc1|b|c|\nc1|c|a|\n", "are above themselves: a > b > c > ..."),
        ("c1|a|b|\nc1|a|c|\n", "has two parents, b and c"),
        ("".join(f"c1|a{n}|a{n + 1}|\n" for n in range(70)), "levels deep; at most 64"),
        (f"c1|{'x' * 10240}|{'x' * 10240}|\n", "are above themselves"),
    ],
)
def test_what_is_no_tree_is_refused_in_one_short_line(text: str, said: str) -> None:
    with pytest.raises(AccountingError) as raised:
        account_tree.parse(text, "tree")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_a_tree_is_asked_of_sacctmgr_and_its_failure_is_told(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/sacctmgr"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {site}/tree\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + ":/usr/bin:/bin")
    assert "science" in report(site, "--tree", "sacctmgr")
    assert (tmp_path / "asked").read_text().strip() == " ".join(account_tree.COMMAND[1:])
    program.write_text("#!/bin/sh\necho 'slurmdbd: no' >&2\nexit 1\n")
    result = run(site, "report", "--month", "2026-09", "--output", str(site / "r.html"), "--tree", "sacctmgr")
    assert result.exit_code == 1
    assert "sacctmgr failed (1): slurmdbd: no" in result.stderr
    assert run(site, "report", "--month", "2026-09", "-o", str(site / "r"), "--tree", "/none").exit_code == 1


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("details", "summary", "div", "script"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("details", "summary", "div", "script"):
            assert self.open.pop() == tag


def test_the_report_has_the_tree_without_a_script_and_its_sums_are_the_bills(site: Path) -> None:
    text = report(site, "--tree", str(site / "tree"))
    parser = _Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "<script" not in text
    assert "idle" not in text
    assert "x" * 121 not in text.split("<h2>Accounts and their users</h2>")[1].split("<h2>")[0]
    bill = list(csv.DictReader(io.StringIO(run(site, "bill", "--month", "2026-09", "--format", "csv").stdout)))
    total = sum(Decimal(line["cost_eur"]) for line in bill)
    tree = text.split('class="tree paid"')[1]
    tops = {
        re.findall(r'label"><bdi>(.*?)<', line)[0]: Decimal(re.findall(r'class="n">([\d,.]+)<', line)[-1])
        for line in re.findall(r"<summary.*", tree)
    }
    assert tops["root"] + tops[hierarchy.NOT_IN_TREE] == total


def test_each_user_has_a_page_of_their_own_with_nobody_elses_name(site: Path) -> None:
    report(site, "--users", str(site / "pages"))
    pages = {path.name: path.read_text(encoding="utf-8") for path in (site / "pages").iterdir()}
    assert len(pages) == len({job.user for job in JOBS})
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,110}\.html", name) for name in pages)
    assert "ann.html" in pages
    mine = next(text for text in pages.values() if "王小明" in text)
    assert CHINESE in mine
    assert "phys" in mine
    assert "20.00" in mine  # 8 h at 2.50
    for other in ("ann", "محمد", "passwd"):
        assert other not in mine
    assert all("<script" not in text for text in pages.values())
    markup = next(text for text in pages.values() if "alert" in text)
    assert "--gres=vgpu:" in markup
    # Two users never share a file.
    assert hierarchy.of_users([_share("a", "A/b", "1"), _share("a", "A_b", "1")]).keys() == {"A/b", "A_b"}


@needs_browser
@pytest.mark.parametrize("width", [1400, 800, TELEPHONE_PX])
def test_tree_and_user_pages_fit_the_screen_with_names_of_any_script(site: Path, tmp_path: Path, width: int) -> None:
    text = report(site, "--tree", str(site / "tree"), "--users", str(site / "pages"))
    pages = [path.read_text(encoding="utf-8") for path in (site / "pages").iterdir()]
    for page in (text.replace("<details>", "<details open>"), *pages):
        found = _measure(page, tmp_path, width)
        assert (found["overlaps"], found["out"], found["cut"]) == ([], [], [])


@needs_browser
def test_on_paper_the_closed_parts_of_the_tree_are_there(site: Path, tmp_path: Path) -> None:
    from .paper import opened, page_lines

    page, pdf = tmp_path / "r.html", tmp_path / "r.pdf"
    page.write_text(report(site, "--tree", str(site / "tree")), encoding="utf-8")
    _browse(page, tmp_path, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    with opened(pdf.read_bytes()) as printed:
        lines = "\n".join(line for paper in printed for line in page_lines(paper))
    tree = lines.split("Accountsandtheirusers")[1].split("Energy")[0]
    assert "chem" in tree
    assert "alert" in tree


def test_a_site_may_replace_the_templates_of_tree_and_page(site: Path) -> None:
    (site / "templates").mkdir()
    (site / "templates/user.html.j2").write_text("MINE {{ user|shortened(9) }}", encoding="utf-8")
    report(site, "--users", str(site / "pages"))
    assert (site / "pages/ann.html").read_text() == "MINE ann"
