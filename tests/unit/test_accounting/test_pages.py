# SPDX-License-Identifier: Apache-2.0
"""The HTML of reports and invoices: self-contained, escaped, and laid out so that nothing overlaps.

The layout is judged by a real browser (Debian's chromium): a script, put into a copy of the page, measures every
piece of text and every bar, and the browser prints what it found.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import invoice, invoice_files, month_report
from hami_hpc.accounting.documents.efficiency import choose, runs
from hami_hpc.accounting.formats import charts, html
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import month_period, parse_instant, split_days, zone

from .paper import assert_on_paper, bars, opened, page_lines
from .samples import GPUS, HOUR, ONE_H200, VGPU_HALF, Job, fill, issue_one, rates
from .test_efficiency import NS, _record, _spool

UTC = zone("UTC")
START = parse_instant("2026-09-01", UTC)
PRICES = rates(
    rates=[{"model": "h200", "per_gpu_hour": 2}],
    gpus={"h200": {"total_mib": 143156, "count": 40}},
    credits=[
        {
            "id": "g",
            "account": "account-0",
            "amount": 5,
            "note": "a note that is long enough to need more than one line " * 3,
        }
    ],
    discounts=[{"from_gpu_hours": 0, "percent": 5}],
    issuer=["University Computing Centre", "1 Example Street"],
)
MIG = "gres/gpu:h200_1g.18gb=1,gres/gpu=1"
CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.browser

# Boxes of text (cells, headings, labels in charts, tiles) that touch one another, and what reaches over its frame.
MEASURE = """
<script>
addEventListener("load", () => {
  const leaves = [...document.querySelectorAll("h1, h2, p, dt, dd, th, td, address, .tile, svg text, .key")]
    .filter(e => !e.closest(".tile") || e.matches(".tile"));
  const boxes = leaves.map(e => [e, e.getBoundingClientRect()]).filter(([, r]) => r.width > 0 && r.height > 0);
  const overlaps = [];
  for (let i = 0; i < boxes.length && overlaps.length < 5; i++)
  for (let j = i + 1; j < Math.min(i + 400, boxes.length); j++) {
    const [a, r] = boxes[i], [b, s] = boxes[j];
    if (a.contains(b) || b.contains(a)) continue;
    if (r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 1 && s.top < r.bottom - 1)
      overlaps.push(a.textContent.trim().slice(0, 30) + " / " + b.textContent.trim().slice(0, 30));
  }
  const frame = document.documentElement.clientWidth;
  // On a narrow screen tables and charts scroll within their own frames; the page itself never does.
  const scrolled = e => frame < 600 && e.closest(".wide, figure");
  const out = boxes.filter(([e, r]) => !scrolled(e) && (r.right > frame + 1 || r.left < -1))
    .map(([e]) => e.textContent.slice(0, 30));
  if (document.documentElement.scrollWidth > frame) out.push("the page scrolls sideways");
  const cut = [...document.querySelectorAll("td, th")].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent.slice(0, 30));
  const bars = [...document.querySelectorAll("svg.chart rect")]
    .filter(e => e.getBoundingClientRect().height > 0.5).length;
  const letters = Math.min(...[...document.querySelectorAll("svg.chart text")].map(
    e => e.matches("[transform]") ? e.getBoundingClientRect().width : e.getBoundingClientRect().height));
  const found = {overlaps, letters, frame, out: out.slice(0, 5), cut: cut.slice(0, 5), bars, boxes: boxes.length,
    charts: document.querySelectorAll("svg.chart").length};
  const text = JSON.stringify(found).replace(/&/g, "&amp;").replace(/</g, "&lt;");
  if (parent !== window) parent.postMessage(text, "*");
  else document.body.innerHTML = "<pre id=measured>" + text + "</pre>";
});
</script>
"""
# A window has a least width, a frame within it has not: the page as a telephone shows it.
TELEPHONE = """<!doctype html><body><script>
addEventListener("message", e => document.body.innerHTML = "<pre id=measured>" + e.data + "</pre>");
</script><iframe src="PAGE" style="width: 375px; height: 700px; border: 0"></iframe></body>
"""
TELEPHONE_PX = 375
LEAST_LETTER_PX = 8


def _browse(page: Path, directory: Path, *options: str) -> str:
    quiet = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
    profile = ("--disable-background-networking", f"--user-data-dir={directory / 'profile'}")
    command = (CHROMIUM or "", "--headless", *quiet, *profile, *options, page.as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _measure(text: str, directory: Path, width: int) -> dict[str, Any]:
    page = directory / "page.html"
    page.write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    if width == TELEPHONE_PX:
        framed, page = page, directory / "telephone.html"
        page.write_text(TELEPHONE.replace("PAGE", framed.as_uri()), encoding="utf-8")
    printed = _browse(
        page, directory, f"--window-size={max(width, 600)},1000", "--virtual-time-budget=5000", "--dump-dom"
    )
    match = re.search(r"<pre id=\"measured\">(.*?)</pre>", printed, re.DOTALL)
    assert match, printed[:500]
    found: dict[str, Any] = json.loads(match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert abs(found["frame"] - width) <= 20  # but for a scroll bar, as wide as was asked
    return found


def _jobs(users: int) -> list[Job]:
    kinds = [ONE_H200, VGPU_HALF, MIG, "gres/shard=28"]
    return [
        Job(
            job_id=i + 1,
            submit=START + (i * 7919) % (29 * 86400),
            start=START + (i * 7919) % (29 * 86400) + i % 97,
            end=START + (i * 7919) % (29 * 86400) + i % 97 + HOUR * (1 + i % 5),
            tres=kinds[i % 4],
            user=f"u{i % users}" if i % users % 3 else f"user-with-a-rather-long-name-{i % users}",
            account=f"account-{i % min(users, 40)}",
            state=["COMPLETED", "FAILED", "PREEMPTED", "TIMEOUT"][i % 4],
        )
        for i in range(max(40, users))
    ]


@pytest.fixture(scope="module", params=[1, 2000], ids=["1 user", "2,000 users"])
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(report, invoice) of a month with that many users."""
    root = tmp_path_factory.mktemp("pages") / "s"
    jobs = _jobs(request.param)
    fill(root, jobs)
    used = [
        _record(job.job_id, (job.start or 0) + 1, job.end or 0, gpu_busy_ns=job.job_id * NS)
        for job in jobs
        if job.tres == VGPU_HALF
    ]
    usage_table.collect(root, _spool(root.parent / "u", *used), "c1", False)
    period = month_period("2026-09", UTC)
    records = job_records.from_store(root, period, 256)
    priced_period = price_period(records, GPUS, PRICES, split_days(period, UTC), UTC)
    times = invoice.account_times(priced_period)
    table = usage_table.stored(root, store_files.read_manifest(root))
    uses = runs(choose(records, "true", []), table, GPUS)
    made = month_report.build("2026-09", priced_period, PRICES, uses, ["left out: 3 jobs: a reason"], period.end_s)

    def build(credit: Any) -> invoice.Content:
        return invoice.build(
            "account-0", date(2026, 9, 1), times["account-0"], priced_period.segments, PRICES, credit, ["a note"]
        )

    (document,) = issue_one(root, "account-0", build, issuer=PRICES.issuer)
    return html.report(made, UTC, PRICES.issuer), html.invoice(document)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "line", "rect"):
            self.open.append(tag)
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "rect"):
            assert self.open.pop() == tag


def test_pages_are_whole_and_fetch_nothing(pages: tuple[str, str]) -> None:
    for text in pages:
        tags = _Tags()
        tags.feed(text)
        assert (tags.open, tags.fetched) == ([], [])
        assert "<script" not in text
        assert "url(" not in text
        assert "@import" not in text


@needs_browser
@pytest.mark.parametrize("width", [1280, 700, TELEPHONE_PX])
def test_nothing_on_a_page_overlaps_or_leaves_its_frame_and_the_charts_are_drawn(
    pages: tuple[str, str], tmp_path: Path, width: int
) -> None:
    for text, least_charts in zip(pages, (2, 1), strict=True):
        found = _measure(text, tmp_path, width)
        assert (found["overlaps"], found["out"], found["cut"]) == ([], [], [])
        assert found["boxes"] > 40
        assert found["charts"] == least_charts
        assert found["letters"] >= LEAST_LETTER_PX
        assert found["bars"] >= 4


@needs_browser
def test_a_layout_that_is_broken_is_noticed(pages: tuple[str, str], tmp_path: Path) -> None:
    broken = pages[0].replace("<h2>", '<h2 style="margin-top:-60px">')
    assert _measure(broken, tmp_path, 1100)["overlaps"]
    wide = pages[0].replace("<h1>", '<h1 style="width:3000px">')
    assert _measure(wide, tmp_path, 1100)["out"]


@needs_browser
def test_pages_print_on_a4(pages: tuple[str, str], tmp_path: Path) -> None:
    for number, text in enumerate(pages):
        page, pdf = tmp_path / f"{number}.html", tmp_path / f"{number}.pdf"
        page.write_text(text, encoding="utf-8")
        _browse(page, tmp_path, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
        with opened(pdf.read_bytes()) as printed:
            assert_on_paper(printed)
            assert max(bars(paper) for paper in printed) >= 4
            lines = [line for paper in printed for line in page_lines(paper)]
            # A month of 2,000 users is still a report that one reads: tables end in a line for the others.
            assert 1 <= len(printed) <= 12
        names = {
            cell for cell in re.findall(r'<td class="name">(.*?)</td>', text) if len(cell) <= 9 and " " not in cell
        }
        assert names
        assert {name for name in names if not any(name in line for line in lines)} == set()  # none is broken


def test_a_report_of_many_users_sums_up_the_small_ones_in_one_line(pages: tuple[str, str]) -> None:
    many = "<b>2,000</b>users" in pages[0]
    assert many or "<b>1</b>user, 1 account<" in pages[0]
    assert re.findall(r"([0-9,]+) others", pages[0]) == (["15", "1,975"] if many else [])


def test_names_are_escaped() -> None:
    evil = '<img src=x onerror="alert(1)">'
    drawn = charts.bars(evil, evil, [evil], [(evil, [1.0]), ("b", [2.0])]) + charts.shares(
        evil, evil, evil, evil, [(evil, 1, 2)]
    )
    assert "<img" not in drawn
    template = html.environment(None).from_string("{{ value }}")
    assert template.render(value=evil) == "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;"


def test_an_issued_invoice_is_rendered_to_the_same_bytes_every_time(tmp_path: Path) -> None:
    fill(tmp_path / "s", [Job(submit=START, start=START, end=START + HOUR, account="a<b")])
    period = month_period("2026-09", UTC)
    records = job_records.from_store(tmp_path / "s", period, 256)
    priced_period = price_period(records, GPUS, PRICES, split_days(period, UTC), UTC)
    times = invoice.account_times(priced_period)

    def build(credit: Any) -> invoice.Content:
        return invoice.build("a<b", date(2026, 9, 1), times["a<b"], priced_period.segments, PRICES, credit, ())

    (document,) = issue_one(tmp_path / "s", "a<b", build)
    (stored,) = invoice_files.read_all(tmp_path / "s")
    assert stored == document
    assert html.invoice(stored) == html.invoice(document)
    assert "a&lt;b" in html.invoice(stored)


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (21, 25), (26, 50), (9999, 10000)]
)
def test_axes_end_on_round_numbers(value: float, ceiling: float) -> None:
    assert charts.nice_ceiling(value) == pytest.approx(ceiling)
