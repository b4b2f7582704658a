# SPDX-License-Identifier: Apache-2.0
"""Where this installation's parts lie, and which build it is. In a checkout as here; `make install` writes its own.

The prolog imports this: constants only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

BUILD: Final[str] = ""  # version and revision; empty in a checkout, where git knows
LIB_DIR: Final[str] = "/usr/lib/hami-hpc"
LUA_DIR: Final[str] = ""  # the filters; empty: the checkout's
STAGE_DIR: Final[str] = ""  # prolog and epilog; empty: the checkout's
TEMPLATE_DIR: Final[str] = ""  # what render fills in; empty: the checkout's
