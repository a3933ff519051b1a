"""What an S3 server's refusal means.  Pure: status, code and headers in, one of our errors out.

Servers disagree on the spelling: a version that does not exist is NoSuchVersion, NoSuchKey, a bare
404, or on AWS an InvalidArgument; a delete marker's id is 405 here and 404 there.  What decides is
what was asked: with a versionId, each of them means that the pin is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime

from artifacts.errors import (
    ArtifactError,
    NotAllowed,
    PinGone,
    TryAgain,
    UsageError,
    VerificationFailed,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A refusal as the server spelled it."""

    status: int
    code: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked: `where`, with a versionId or an If-Match, or a listing."""

    where: str
    version_id: str | None = None
    etag: str | None = None
    listing: bool = False


_BUSY = {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling"}
_BUSY |= {"ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "OperationAborted"}
_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}
_CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}
_IDENTITY = {
    "InvalidAccessKeyId": "the access key is unknown to the server",
    "SignatureDoesNotMatch": "the secret access key does not fit the access key",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
}
_GONE_STATUS = {404, 405, 410}


def explain(answer: Answer, question: Question, now: datetime) -> ArtifactError:
    """Return the error that this refusal is."""
    if answer.code in _BUSY or answer.status in (408, 429) or _is_server_fault(answer.status):
        return _busy(answer, question)
    if answer.code in _CLOCK:
        return _skewed(answer, question, now)
    if answer.code in _REGION or 300 <= answer.status < 400:
        return _elsewhere(answer, question)
    if answer.status in (401, 403) or answer.code in _IDENTITY:
        return _forbidden(answer, question)
    return _absent(answer, question) or _unexpected(answer, question)


def _is_server_fault(status: int) -> bool:
    return status >= 500 and status != 501


def _busy(answer: Answer, question: Question) -> TryAgain:
    return TryAgain(
        f"the store answered {answer.status} {answer.code}".rstrip(),
        where=question.where,
        fix="It is busy or broken for now: run the same command again, and it resumes",
    )


def _skewed(answer: Answer, question: Question, now: datetime) -> NotAllowed:
    apart = ""
    try:
        theirs = parsedate_to_datetime(answer.headers.get("date", ""))
        apart = f": ours is {abs((now - theirs).total_seconds()):.0f} s away from it"
    except (ValueError, TypeError):
        pass  # no date, or one without a zone: say it without the figure
    return NotAllowed(
        f"the store refuses our clock{apart}",
        where=question.where,
        fix="Set this machine's clock (NTP)",
    )


def _elsewhere(answer: Answer, question: Question) -> UsageError:
    region = answer.headers.get("x-amz-bucket-region")
    fix = f"Set the region to {region}" if region else "Set region and endpoint_url of the bucket"
    return UsageError("the bucket lives in another region", where=question.where, fix=fix)


def _forbidden(answer: Answer, question: Question) -> NotAllowed:
    if answer.code in _IDENTITY:
        return NotAllowed(
            _IDENTITY[answer.code], where=question.where, fix="Check the credentials in use"
        )
    if question.listing:
        need, also = "s3:ListBucketVersions", ""
    elif question.version_id:
        need, also = "s3:GetObjectVersion", " (s3:GetObject does not cover a versionId)"
    else:
        need, also = (
            "s3:GetObject",
            "; without s3:ListBucket a missing key is refused like this too",
        )
    return NotAllowed(
        f"the store refuses: {answer.code or answer.status}",
        where=question.where,
        fix=f"Allow {need}{also}",
    )


def _absent(answer: Answer, question: Question) -> ArtifactError | None:
    if answer.code == "NoSuchBucket":
        return PinGone("the bucket does not exist", where=question.where, fix="Check its name")
    if answer.status == 412 or answer.code == "PreconditionFailed":
        return PinGone(
            f"the object was overwritten: its etag is no longer {question.etag}",
            where=question.where,
            fix="Lock it again, and turn on versioning for the bucket, so that it can be kept",
        )
    if answer.status == 416 or answer.code == "InvalidRange":
        return VerificationFailed("the object is shorter than the pin says", where=question.where)
    malformed = (
        answer.status == 400 and question.version_id and answer.code in ("InvalidArgument", "")
    )
    if answer.status in _GONE_STATUS or answer.code in ("NoSuchKey", "NoSuchVersion") or malformed:
        return _gone(answer, question)
    return None


def _gone(answer: Answer, question: Question) -> PinGone:
    if question.version_id:
        return PinGone(
            f"the version {question.version_id} does not exist (any more)",
            where=question.where,
            fix="It was deleted or expired: see `epp-artifacts show` for those that are left",
        )
    hidden = answer.headers.get("x-amz-delete-marker") == "true"
    return PinGone(
        "the object was deleted" if hidden else "there is no object of that name",
        where=question.where,
        fix="Its older versions are still there: see `epp-artifacts show`"
        if hidden
        else f"For all objects below it, write {question.where.partition('?')[0]}/",
    )


def _unexpected(answer: Answer, question: Question) -> UsageError:
    said = f"{answer.status} {answer.code}".strip()
    return UsageError(
        f"the store refuses the request: {said}", where=question.where, fix=answer.message
    )
