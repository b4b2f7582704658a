# SPDX-License-Identifier: Apache-2.0
"""The project's exceptions: one base class, and a class each for faults of the job, the node and the request."""

from __future__ import annotations

from hami_hpc.contract import constants as contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_PLACEHOLDER: Final = r"\{([a-z]+)\}"


class HamiError(Exception):
    """Base of every error that hami_hpc raises on purpose.

    `message` is one line for people: what failed, on which job or device, and what to do next. `code` is stable and for
    programs: each class has its own, and an error can have a more specific one.
    """

    code: str = "E_HAMI"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class JobError(HamiError):
    """A fault of the job: the job fails, the node stays in service."""

    code = "E_JOB"


class NodeError(HamiError):
    """A fault of the node: the node is drained, with the message as the reason."""

    code = "E_NODE"


class RequestError(HamiError):
    """A refused request. The contract has the messages ([errors.codes])."""

    code = "E_REQUEST"


class Refusal:  # every prolog imports this module: dataclasses would cost it 10 ms
    """The values of an error text's placeholders. `given` and `key` are the user's words, the others hami_hpc's."""

    __slots__ = ("allowed", "classes", "example", "given", "key", "model", "where")

    def __init__(
        self,
        given: str = "",
        key: str = "",
        where: str = "",
        allowed: str = "",
        model: str = "",
        classes: str = "",
        example: str = contract.REQUEST_EXAMPLE,
    ) -> None:
        self.given, self.key, self.where = given, key, where
        self.allowed, self.model, self.classes, self.example = allowed, model, classes, example


def shorten(text: str) -> str:
    """Turns the user's words into text for one line of a log: printable ASCII, at most GIVEN_MAX bytes.

    `text` may hold undecodable bytes as surrogates (as os.environ and sys.argv do); each byte that is not printable
    ASCII becomes one '?'.
    """
    raw = text.encode("utf-8", "surrogateescape")
    clean = "".join(chr(b) if 0x20 <= b <= 0x7E else "?" for b in raw)
    return clean if len(clean) <= contract.GIVEN_MAX else clean[: contract.GIVEN_MAX - 3] + "..."


def _as_written(text: str) -> str:
    """Returns a request as the user wrote it, for what a client's filter has made of it: "mem=8G,cores=50" for
    "mem~8G;cores~50"."""
    return text.replace("~", "=").replace(";", ",") if "~" in text else text


def request_error(code: str, refusal: Refusal | None = None) -> RequestError:
    """Builds the error for the contract's code `code`. Raises KeyError if the contract has no such code."""
    import re  # imported here because most prologs do not need it

    refusal = refusal or Refusal()
    values = {
        "given": shorten(_as_written(refusal.given)),
        "key": shorten(refusal.key),
        "where": refusal.where,
        "allowed": refusal.allowed,
        "model": refusal.model,
        "classes": refusal.classes,
        "example": refusal.example,
    }
    text = re.sub(_PLACEHOLDER, lambda m: values.get(m[1], m[0]), contract.ERRORS[code])
    return RequestError(contract.ERROR_PREFIX + text, code)
