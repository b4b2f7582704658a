# SPDX-License-Identifier: Apache-2.0
"""hami-hpc advise: the rules, the figures and where they come from, the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from mig_models import profiles_of
from node_testbed import ROOT

from hami_hpc.cli import main
from hami_hpc.core.advice import MIG, MPS, SHARE, WAYS, WHOLE, Advice, Hardware, Kernels, Trust, Workload, advise
from hami_hpc.core.advice_figures import FIGURES, Figure
from hami_hpc.core.mig_text import settings_lines

H200_MIB = 143156
H200 = Hardware("h200", H200_MIB, H200_MIB, ("share", "mps", "mig"), profiles_of("h200"))
WITHOUT_MIG = Hardware("h200", H200_MIB, H200_MIB, ("share", "mps"))
SMALL = Workload(8192, 10)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.text[:40])
def test_a_figure_is_on_the_page_that_it_names(figure: Figure) -> None:
    page = (ROOT / "docs/benchmarks" / figure.page).read_text(encoding="utf-8")
    assert figure.found_in in page
    described = {"1", "2", "10", "100", "200", "75", "25", "50", "700"}  # sizes and names of what was measured
    numbers = set(re.findall(r"\d+(?:\.\d+)?", re.sub("H200|p99", "", figure.text)))
    in_row = set(re.findall(r"\d+(?:\.\d+)?", figure.found_in))
    assert numbers - described - {"1.0"} <= in_row, "each number is of that row"
    assert numbers & in_row


@pytest.mark.parametrize(
    ("work", "hardware", "expected"),
    [
        (SMALL, H200, SHARE),
        (Workload(8192, 10, trust=Trust.NONE), H200, MIG),
        (Workload(8192, 10, trust=Trust.NONE), WITHOUT_MIG, WHOLE),
        (Workload(8192, 100, trust=Trust.NONE), WITHOUT_MIG, WHOLE),
        (Workload(8192, 10, latency=True), H200, SHARE),
        (Workload(8192, 10, latency=True, trust=Trust.OWN, count=4, kernels=Kernels.SMALL), H200, SHARE),
        (Workload(8192, 10, trust=Trust.OWN, count=4, kernels=Kernels.SMALL), H200, MPS),
        (Workload(8192, 10, trust=Trust.OWN, count=1, kernels=Kernels.SMALL), H200, SHARE),
        (Workload(8192, 10, trust=Trust.OWN, count=4), H200, SHARE),
        (Workload(8192, 10, trust=Trust.GROUP, count=4, kernels=Kernels.SMALL), H200, SHARE),
        (Workload(H200_MIB, 100), H200, WHOLE),
    ],
)
def test_the_advised_way(work: Workload, hardware: Hardware, expected: str) -> None:
    assert advise(work, hardware)[0].way == expected


def by_way(work: Workload, hardware: Hardware = H200) -> dict[str, Advice]:
    return {one.way: one for one in advise(work, hardware)}


def test_users_who_distrust_each_other_share_nothing_by_a_library() -> None:
    found = by_way(Workload(8192, 10, trust=Trust.NONE))
    assert [way for way in WAYS if found[way].fits] == [MIG, WHOLE]
    assert any(reason.topic == "isolation" and reason.is_for is False for reason in found[SHARE].reasons)
    assert found[SHARE].request == "", "nothing to paste for what does not fit"


def test_what_separates_instances_speaks_for_mig() -> None:
    speaks = {reason.topic: reason.is_for for reason in by_way(SMALL)[MIG].reasons}
    assert (speaks["isolation"], speaks["fault"]) == (True, True)


def test_a_mig_profile_covers_both_and_the_rest_of_it_is_said() -> None:
    (reason,) = (r for r in by_way(Workload(8192, 10))[MIG].reasons if r.topic == "granularity")
    assert reason.text == "1g.18gb has 16384 MiB and 14 %: 8192 MiB and 4 % more than asked for"
    assert by_way(Workload(8192, 10))[MIG].request == "--gres=vgpu:h200:mig=1g.18gb"
    assert by_way(Workload(8192, 10))[MIG].per_gpu == 7
    assert "4g" in by_way(Workload(8192, 50))[MIG].request, "three of seven slices are less than 50 %"
    only = tuple(p._replace(name="" if p.name != "1g.18gb" else p.name) for p in profiles_of("h200"))
    few = Hardware("h200", H200_MIB, H200_MIB, ("mig",), only)
    assert not by_way(Workload(8192, 50), few)[MIG].fits
    assert "no profile that the site offers" in by_way(Workload(8192, 50), few)[MIG].reasons[-1].text


def test_a_way_that_the_site_does_not_offer_comes_after_one_that_it_does() -> None:
    only_mps = Hardware("h200", H200_MIB, H200_MIB, ("mps",))
    found = advise(SMALL, only_mps)
    assert [one.way for one in found] == [WHOLE, SHARE, MPS, MIG], "those that do not fit come last"
    assert [one.fits for one in found] == [True, True, False, False]
    assert found[1].reasons[-1].text == "modes of the settings does not offer share"


def test_how_many_fit_a_gpu() -> None:
    assert by_way(Workload(8192, 30))[SHARE].per_gpu == 3
    assert by_way(Workload(60_000, 1))[SHARE].per_gpu == 2
    scaled = Hardware("h200", H200_MIB, H200_MIB // 2, ("share",))
    assert by_way(Workload(60_000, 1), scaled)[SHARE].per_gpu == 1
    assert not by_way(Workload(100_000, 1), scaled)[SHARE].fits
    with pytest.raises(ValueError, match="has 143156 MiB"):
        advise(Workload(H200_MIB + 1, 1), H200)


@given(
    st.builds(
        Workload,
        mem_mib=st.integers(1, H200_MIB),
        cores=st.integers(1, 100),
        count=st.integers(1, 99),
        latency=st.booleans(),
        trust=st.sampled_from(Trust),
        kernels=st.sampled_from(Kernels),
    ),
    st.sampled_from([H200, WITHOUT_MIG]),
)
def test_there_is_always_an_advice_that_fits_and_that_the_site_offers(work: Workload, hardware: Hardware) -> None:
    found = advise(work, hardware)
    assert sorted(one.way for one in found) == sorted(WAYS)
    assert found[0].fits
    assert found[0].is_offered
    assert found[0].per_gpu > 0
    assert all(bool(one.request) == one.fits or one.per_gpu == 0 for one in found)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "hami-hpc.toml"
    lines = settings_lines(profiles_of("h200"))
    text = 'version = 1\n[vgpu]\nmodes = ["share", "mig"]\n[gpu_models.h200]\ntotal_mib = 143156\n'
    path.write_text("\n".join([text, "[gpu_models.h200.mig_profiles]", *lines, ""]))
    return path


def run(config: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["advise", *words], env={"HAMI_HPC_CONFIG": str(config)})


def test_the_command_prints_the_ways_with_reasons_and_sources(config: Path) -> None:
    result = run(config, "--mem", "8G", "--cores", "10", "--gpu", "h200", "--count", "20")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "ADVISED: share, 10 on a GPU, 2 GPU(s) for 20"
    assert lines[1] == "    --gres=vgpu:h200:mem=8192M,cores=10,mode=share"
    assert "98.90 together (H200) [docs/benchmarks/interposer.md]" in result.output
    assert "or: mig, 7 on a GPU, 3 GPU(s) for 20" in lines
    assert "not: mps, does not fit" in lines


def test_the_documented_command_advises_what_the_page_says(config: Path) -> None:
    words = ("--mem", "8G", "--cores", "25", "--count", "12", "--trust", "none", "--gpu", "h200")
    result = run(config, *words)
    assert (result.exit_code, result.output.partition(",")[0]) == (0, "ADVISED: mig")
    text = config.read_text()
    config.write_text(
        text.replace('modes = ["share", "mig"]', 'modes = ["share"]').partition("[gpu_models.h200.mig")[0]
    )
    assert run(config, *words).output.startswith("ADVISED: whole")


def test_the_output_for_machines(config: Path) -> None:
    words = ("--mem", "5%", "--cores", "10", "--gpu", "h200", "--trust", "none", "--format", "json")
    found: list[dict[str, Any]] = json.loads(run(config, *words).output)
    assert [row["way"] for row in found if row["is_advised"]] == ["mig"]
    assert found[0]["request"] == "--gres=vgpu:h200:mig=1g.18gb"
    assert {row["source"] for one in found for row in one["reasons"] if row["source"]} <= {
        f"docs/benchmarks/{figure.page}" for figure in FIGURES
    }
    assert [row["gpus_needed"] for row in found if not row["fits"]] == [None, None]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mem", "200G", "--cores", "10", "--gpu", "h200"), "--mem 200G does not fit: a h200 has 143156 MiB"),
        (("--mem", "8", "--cores", "10", "--gpu", "h200"), "mem"),
        (("--mem", "8G,mode=mig", "--cores", "10", "--gpu", "h200"), "--mem takes one amount of memory"),
        (("--mem", "8G", "--cores", "10", "--gpu", "b200"), "--gpu b200 is no GPU model of"),
        (("--mem", "8G", "--cores", "101", "--gpu", "h200"), "101"),
    ],
)
def test_what_is_not_understood_is_said(config: Path, words: tuple[str, ...], said: str) -> None:
    result = run(config, *words)
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output
