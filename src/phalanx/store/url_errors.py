"""Tell what a store's error means: lasting or passing, and in one sentence.

Libraries of stores raise errors of their own classes, which may not be installed here; they are
known by name and by what they say. Called by `url_store`.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

_DENIED_NAMES = (
    "AuthenticationException",
    "BadAuthenticationType",
    "BadHostKeyException",
    "NoCredentialsError",
    "PartialCredentialsError",
    "PasswordRequiredException",
    "PermissionError",
    "TokenRetrievalError",
)
_DENIED_WORDS = (
    "403",
    "accessdenied",
    "access denied",
    "forbidden",
    "invalidaccesskeyid",
    "not found in known_hosts",
    "permission denied",
    "signaturedoesnotmatch",
    "unable to locate credentials",
)
_MISSING_NAMES = ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "NoSuchBucket")
_MISSING_WORDS = ("nosuchbucket", "nosuchkey", "bucket does not exist")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Trouble:
    """What an error of a store means."""

    kind: str
    """denied, missing, full or passing; only the last is worth another try."""
    sentence: str

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind == "passing"


def explain(error: BaseException, url: str) -> Trouble:
    """Classify what was raised while an address was read or written."""
    names = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    said = " ".join(f"{cause}" for cause in _causes(error)).lower()
    brief = brief_words(error)
    if names & set(_DENIED_NAMES) or any(word in said for word in _DENIED_WORDS):
        return Trouble(
            "denied",
            f"{url}: the store refused access ({brief}); check user, key and permissions "
            "(~/.aws, AWS_* variables, ~/.ssh/config and known_hosts, or the store's own settings)",
        )
    if names & set(_MISSING_NAMES) or any(word in said for word in _MISSING_WORDS):
        return Trouble("missing", f"{url} does not exist; check the address")
    if any(getattr(cause, "errno", None) in _FULL for cause in _causes(error)):
        return Trouble("full", f"{url} cannot be written ({brief}); free some space there")
    return Trouble("passing", f"{url}: {brief}")


def brief_words(error: BaseException) -> str:
    """Return the first line of an error, or its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found and len(found) < 8:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
