"""The model's name as a header: told where it can be, left out where Envoy would refuse it."""

import pytest

from epp.extproc.codec import MODEL, encode
from epp.extproc.events import AnswerRequestBody, AnswerRequestHeaders, Route
from protos.gen import ext_proc_pb2 as pb


def told(name: str, *, in_body_answer: bool) -> list[str]:
    route = Route("10.0.0.1:80", "default/vllm", name)
    if in_body_answer:
        message = pb.ProcessingResponse.FromString(encode(AnswerRequestBody(route)))
        mutation = message.request_body.response.header_mutation
    else:
        message = pb.ProcessingResponse.FromString(encode(AnswerRequestHeaders(route)))
        mutation = message.request_headers.response.header_mutation
    values = [o.header.raw_value.decode() for o in mutation.set_headers if o.header.key == MODEL]
    assert (MODEL in mutation.remove_headers) == (not values)
    return values


@pytest.mark.parametrize("in_body_answer", [True, False])
@pytest.mark.parametrize("name", ["llama", "a/b:c", "名前", "with space", "x" * 1024])
def test_a_name_that_can_be_a_header_is_told(name: str, in_body_answer: bool) -> None:
    assert told(name, in_body_answer=in_body_answer) == [name]


@pytest.mark.parametrize("in_body_answer", [True, False])
@pytest.mark.parametrize(
    "name", ["", "a\nb", "a\r\nx: y", "\0", "\x7f", "\x85", " a", "a ", "x" * 1025]
)
def test_a_name_that_cannot_is_left_out_and_a_clients_is_removed(
    name: str, in_body_answer: bool
) -> None:
    assert told(name, in_body_answer=in_body_answer) == []
