# SPDX-License-Identifier: Apache-2.0
"""docs/researchers.md explains every error code of the contract, in the contract's order and words."""

from __future__ import annotations

import re
import tomllib

from documents import ROOT, text_of

ROW = re.compile(r"^\| `(E_\w+)` \| (.+) \| (\S.*) \|$", re.MULTILINE)


def test_the_table_of_refusals_is_the_contracts() -> None:
    contract = tomllib.loads((ROOT / "hami_hpc/contract/contract.toml").read_text(encoding="utf-8"))
    codes: dict[str, str] = contract["errors"]["codes"]
    rows = ROW.findall(text_of("docs/researchers.md"))
    assert [code for code, _, _ in rows] == list(codes)
    for code, words, advice in rows:
        assert words in codes[code], code
        assert len(advice) > 10
    assert len({words for _, words, _ in rows}) == len(rows)
