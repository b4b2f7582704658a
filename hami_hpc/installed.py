# SPDX-License-Identifier: Apache-2.0
"""The paths of this installation and its build. A checkout uses this file; `make install` writes another one.

Constants only, because the prolog imports this module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

BUILD: Final[str] = ""  # version and revision; empty in a checkout, where git has them
LIB_DIR: Final[str] = "/usr/lib/hami-hpc"
LUA_DIR: Final[str] = ""  # the Lua filters; empty: the checkout's
STAGE_DIR: Final[str] = ""  # prolog and epilog; empty: the checkout's
TEMPLATE_DIR: Final[str] = ""  # the templates of render; empty: the checkout's
CONFIG: Final[str] = ""  # the settings' file; empty: the contract's
ACCOUNTING_DIR: Final[str] = ""  # where a package of accounting has its requirements; empty: beside the node's
