"""Which namespace, pool and model a stream is about: each way of binding, and which one wins."""

import pytest

from datastore.model import InferencePool, ObjectName
from datastore.store import Store
from epp.errors import ModelInvalid, ModelNotFound, PoolNotFound
from epp.routing.request import UNBOUND, Binding
from epp.routing.resolve import Scope, find_model, find_pool, find_scope, read_binding
from tests.builders import PoolBuilder, a_model, a_pool, a_store, named


@pytest.mark.parametrize(
    ("authority", "service", "namespace"),
    [
        ("epp", "epp", None),
        ("epp:9002", "epp", None),
        ("epp.team-a", "epp", "team-a"),
        ("epp.team-a:9002", "epp", "team-a"),
        ("epp.team-a.svc", "epp", "team-a"),
        ("epp.team-a.svc:9002", "epp", "team-a"),
        ("epp.team-a.svc.cluster.local", "epp", "team-a"),
        ("epp.team-a.svc.cluster.local:9002", "epp", "team-a"),
        ("epp.team-a.svc.cluster.local.:9002", "epp", "team-a"),
        ("epp.team-a.svc.my.domain.example", "epp", "team-a"),
        ("outbound|9002||epp.team-a.svc.cluster.local", "epp", "team-a"),
        ("outbound|9002|v1|epp.team-a.svc.cluster.local", "epp", "team-a"),
        ("outbound|9002||epp.team-a.svc", "epp", "team-a"),
        ("outbound|9002||", None, None),
        ("10.0.0.1:9002", None, None),
        ("10.0.0.1", None, None),
        ("[fd00::1]:9002", None, None),
        ("epp.example.com", None, None),
        ("", None, None),
        (":9002", None, None),
        ("|", None, None),
        (".", None, None),
        ("epp.", None, None),
        (".team-a", None, None),
        (".team-a.svc", None, None),
    ],
)
def test_the_service_that_an_authority_names(
    authority: str, service: str | None, namespace: str | None
) -> None:
    """Each form in which Kubernetes and Istio write a Service; addresses and others name none."""
    binding = read_binding({b":authority": authority.encode()})

    assert binding == Binding(service=service, service_namespace=namespace)


def test_the_metadata_that_binds() -> None:
    """Only the gateway's configuration can set it; empty values are none."""
    told = read_binding({b"x-epp-namespace": b"team-a", b"x-epp-pool": b"vllm"})

    assert told == Binding("team-a", "vllm")
    assert read_binding({b"x-epp-namespace": b"", b"x-epp-pool": b""}) == UNBOUND
    assert read_binding({}) == UNBOUND


# --- which scope --------------------------------------------------------------------------------


def a_shared_world() -> Store:
    """`a/one` and `b/two` have pickers of their own; `shared` serves two pools of `a`."""
    return a_store(
        a_pool("one", "a").picked_by("epp-one"),
        a_pool("two", "b").picked_by("epp-two"),
        a_pool("three", "a").picked_by("shared"),
        a_pool("four", "a").picked_by("shared"),
        a_pool("five", "a").picked_by("same-name"),
        a_pool("six", "b").picked_by("same-name"),
    )


@pytest.mark.parametrize(
    ("binding", "own_pool", "scope"),
    [
        (UNBOUND, None, Scope("own")),
        (UNBOUND, "mine", Scope("own", named("mine", "own"))),
        (Binding(pool="vllm"), None, Scope("own", named("vllm", "own"))),
        (Binding("a"), None, Scope("a")),
        (Binding("a", "vllm"), None, Scope("a", named("vllm", "a"))),
        (Binding("a", "vllm"), "mine", Scope("a", named("vllm", "a"))),
        (Binding("a", "vllm", "epp-two", "b"), "mine", Scope("a", named("vllm", "a"))),
        (Binding(service="epp-one"), None, Scope("a", named("one", "a"))),
        (Binding(service="epp-one", service_namespace="a"), None, Scope("a", named("one", "a"))),
        (Binding(service="epp-one", service_namespace="b"), None, Scope("own")),
        (
            Binding(service="epp-one", service_namespace="a"),
            "mine",
            Scope("own", named("mine", "own")),
        ),
        (Binding(service="shared"), None, Scope("own")),
        (Binding(service="shared", service_namespace="a"), None, Scope("own")),
        (Binding(service="nobody"), None, Scope("own")),
        (Binding(service="same-name"), None, Scope("own")),
        (Binding(service="same-name", service_namespace="b"), None, Scope("b", named("six", "b"))),
        (Binding("b", service="same-name"), None, Scope("b", named("six", "b"))),
        (Binding("a", service="epp-one"), None, Scope("a", named("one", "a"))),
        (Binding("a", service="epp-two", service_namespace="b"), None, Scope("a")),
        (Binding("a", service="epp-two"), None, Scope("a")),
    ],
)
def test_what_binds_a_stream(binding: Binding, own_pool: str | None, scope: Scope) -> None:
    """Metadata, then --pool-name, then a Service that exactly one pool names; else unbound.

    A namespace in the metadata is never left again.
    """
    found = find_scope(binding, a_shared_world(), own_pool=own_pool, own_namespace="own")

    assert found == scope


# --- which model --------------------------------------------------------------------------------


def test_a_model_is_found_by_its_name_in_its_namespace() -> None:
    """The same name in two namespaces is two models."""
    here, there = a_model("llama", "a").to("x"), a_model("llama", "b").to("y")
    store = a_store(here, there)

    assert find_model("llama", Scope("a"), store) == here.value
    assert find_model("llama", Scope("b"), store) == there.value


@pytest.mark.parametrize(
    "name", ["nobody", "Llama", "a/llama", "llama ", "", "x" * 100_000, "\u00e9"]
)
def test_an_unknown_model_is_404(name: str) -> None:
    """In OpenAI's terms; the name is repeated up to a bound, and the namespace named."""
    with pytest.raises(ModelNotFound) as caught:
        find_model(name, Scope("a"), a_store(a_model("llama", "a"), a_model("nobody", "b")))

    assert caught.value.param == "model"
    assert f"`{name[:256]}`" in caught.value.message
    assert "namespace a" in caught.value.message
    assert len(caught.value.message) < 400


def test_a_model_of_another_pool_is_404_with_both_named() -> None:
    """Bound to a pool, only its models resolve."""
    store = a_store(a_model("llama", "a").in_pool("one"))

    assert find_model("llama", Scope("a", named("one", "a")), store).name == named("llama", "a")
    with pytest.raises(ModelNotFound, match=r"a/one.*a/two"):
        find_model("llama", Scope("a", named("two", "a")), store)


def test_a_model_that_cannot_be_served_is_503_with_the_reason() -> None:
    """It exists, so it is not 404; the mistake is the operator's."""
    store = a_store(a_model("llama").invalid("weights on some targets only"))

    with pytest.raises(ModelInvalid, match=r"default/llama.*weights on some"):
        find_model("llama", Scope("default"), store)


# --- which pool ---------------------------------------------------------------------------------


class InvalidPool(PoolBuilder):
    """A pool that cannot be used."""

    @property
    def value(self) -> InferencePool:
        return InferencePool(named("bad"), (), (), invalid="no target ports")


def test_a_pool_is_there_and_usable_or_503() -> None:
    """The pool's name is in the message, and why it cannot be used."""
    store = a_store(a_pool("vllm"), InvalidPool("bad", "default"))

    assert find_pool(named("vllm"), store).pool.name == ObjectName("default", "vllm")
    with pytest.raises(PoolNotFound, match="default/gone does not exist"):
        find_pool(named("gone"), store)
    with pytest.raises(PoolNotFound, match="default/bad cannot be used: no target ports"):
        find_pool(named("bad"), store)
