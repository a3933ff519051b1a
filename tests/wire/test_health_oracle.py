"""Our subset of gRPC's health protocol is the public one, field by field, in both directions."""

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2 as public
from hypothesis import given
from hypothesis import strategies as st

from protos.gen import health_pb2 as ours

MESSAGES: dict[str, Descriptor] = dict(ours.DESCRIPTOR.message_types_by_name)
statuses = st.sampled_from([0, 1, 2, 3]).map(
    lambda number: ours.HealthCheckResponse(status=number)  # type: ignore[arg-type]  # an enum's number
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.text().map(lambda name: ours.HealthCheckRequest(service=name)),
    statuses,
    st.just(ours.HealthListRequest()),
    st.dictionaries(st.text(), statuses).map(lambda all_: ours.HealthListResponse(statuses=all_)),
)


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_is_the_public_one(name: str) -> None:
    """The same names, numbers and types."""
    theirs = getattr(public, name).DESCRIPTOR

    assert [(f.name, f.number, f.type) for f in MESSAGES[name].fields] == [
        (f.name, f.number, f.type) for f in theirs.fields
    ]


def test_every_status_is_the_public_one() -> None:
    """The same names and numbers."""
    assert dict(ours.HealthCheckResponse.ServingStatus.items()) == dict(
        public.HealthCheckResponse.ServingStatus.items()
    )


@given(messages)
def test_what_we_write_reads_the_same_there_and_back(message: Message) -> None:
    """The same text form on both sides, and the same message after the way back."""
    theirs = getattr(public, message.DESCRIPTOR.name).FromString(message.SerializeToString())

    assert str(theirs) == str(message)
    assert type(message).FromString(theirs.SerializeToString()) == message
