# SPDX-License-Identifier: Apache-2.0
"""The presets of the settings, [presets.NAME]: requests that users ask for by name. Checked for render and the filters;
no prolog reads them."""

from __future__ import annotations

from collections.abc import Mapping

from hami_hpc.contract import constants as c
from hami_hpc.core.request import Request, parse
from hami_hpc.core.request_keys import is_preset_name, types_in
from hami_hpc.errors import NodeError, RequestError
from hami_hpc.node import settings_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class _Settings(Protocol):
        """What this module needs of node.config.Settings."""

        @property
        def path(self) -> str: ...
        @property
        def presets(self) -> Mapping[str, object]: ...
        @property
        def gpu_models(self) -> Mapping[str, int]: ...


KEYS = ("mem", "cores", "mode", "policy", "slo", "type")  # those of a request that a preset may have


def read_presets(settings: _Settings) -> dict[str, Request]:
    """Returns the request of each preset. Raises NodeError for the first fault, which it names."""
    return {name: _preset(settings, name, entry) for name, entry in settings.presets.items()}


def _preset(settings: _Settings, name: str, entry: object) -> Request:
    where = settings_lines.where(settings.path, f"presets.{name[: c.GIVEN_MAX]}")
    if not is_preset_name(name):
        longest = c.PRESET_NAME_MAX
        raise NodeError(f"{where}: a preset's name has letters, digits, '-' and '_' only, at most {longest} of them")
    if not isinstance(entry, dict) or not entry:
        raise NodeError(f"{where} is not a table with one of the keys {', '.join(KEYS)}")
    parts = []
    for key, value in entry.items():
        if key not in KEYS:
            raise NodeError(f"{where}: unknown key {key[: c.GIVEN_MAX]!r}; known: {', '.join(KEYS)}")
        is_number = key == "cores" and type(value) is int
        text = str(value)
        if not (is_number or isinstance(value, str)) or any(ch in text for ch in ",;:"):
            raise NodeError(
                f"{where}: {key} = {text[: c.GIVEN_MAX]!r} is not understood; allowed is a {c.KEY_FORM[key]}"
                f"{'' if key == 'cores' else ', in quotes'}"
            )
        parts.append(f"{key}={text}")
    try:
        parsed = parse(f"{c.REQUEST_NAME}:{';'.join(parts)}")
    except RequestError as error:
        raise NodeError(f"{where}: {error.message.removeprefix(c.ERROR_PREFIX)}") from error
    assert parsed is not None  # it names vgpu
    _check_types(settings, where, parsed.request)
    return parsed.request


def _check_types(settings: _Settings, where: str, request: Request) -> None:
    names = [request.gpu_type] if request.gpu_type else list(types_in(request.type)[0]) if request.type else []
    for name in names:
        if name not in settings.gpu_models:
            known = ", ".join(settings.gpu_models) or "none"
            raise NodeError(f"{where}: type names {name[: c.GIVEN_MAX]!r}, which is not in [gpu_models.*]: {known}")
