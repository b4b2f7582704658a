# SPDX-License-Identifier: Apache-2.0
"""The project's exceptions: one base, and who is to blame."""

from __future__ import annotations

from hami_hpc.contract import constants as contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_PLACEHOLDER: Final = r"\{([a-z]+)\}"


class HamiError(Exception):
    """Base of every error that hami_hpc raises on purpose.

    `message` is one line for people: what failed, on which job or device, and what to do next. `code` is stable and
    for machines; a class has one of its own, which an error may narrow.
    """

    code: str = "E_HAMI"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class JobError(HamiError):
    """The job's own fault: the job fails, the node stays in service."""

    code = "E_JOB"


class NodeError(HamiError):
    """The node's fault: the node is drained, with the message as the reason."""

    code = "E_NODE"


class RequestError(HamiError):
    """A request that is refused, worded by the contract ([errors.codes])."""

    code = "E_REQUEST"


class Refusal:  # every prolog imports this module: dataclasses would cost it 10 ms
    """What fills the placeholders of an error text. `given` and `key` are the user's words, the rest is ours."""

    __slots__ = ("allowed", "example", "given", "key", "model", "where")

    def __init__(
        self,
        given: str = "",
        key: str = "",
        where: str = "",
        allowed: str = "",
        model: str = "",
        example: str = contract.REQUEST_EXAMPLE,
    ) -> None:
        self.given, self.key, self.where = given, key, where
        self.allowed, self.model, self.example = allowed, model, example


def shorten(text: str) -> str:
    """Makes the user's words fit for one line of a log: printable ASCII, at most GIVEN_MAX bytes.

    `text` may hold undecodable bytes as surrogates (as os.environ and sys.argv do); each byte that is not printable
    ASCII becomes one '?'.
    """
    raw = text.encode("utf-8", "surrogateescape")
    clean = "".join(chr(b) if 0x20 <= b <= 0x7E else "?" for b in raw)
    return clean if len(clean) <= contract.GIVEN_MAX else clean[: contract.GIVEN_MAX - 3] + "..."


def request_error(code: str, refusal: Refusal | None = None) -> RequestError:
    """Builds the error for contract code `code`; KeyError if the contract has no such code."""
    import re  # not in every prolog

    r = refusal or Refusal()
    values = {
        "given": shorten(r.given),
        "key": shorten(r.key),
        "where": r.where,
        "allowed": r.allowed,
        "model": r.model,
        "example": r.example,
    }
    text = re.sub(_PLACEHOLDER, lambda m: values.get(m[1], m[0]), contract.ERRORS[code])
    return RequestError(contract.ERROR_PREFIX + text, code)
