"""Take running pods of a Kubernetes cluster as machines of a pool.

The pods are there already, such as those of an Indexed Job that sleep; `kubectl` finds them by
label and reaches them. Nothing is created or deleted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from typing_extensions import override

from phalanx.agent.kubectl import ExecRoute
from phalanx.errors import SpecError
from phalanx.pool.engine_command import ask_engine
from phalanx.pool.scheduler import RouteMaker, Scheduler
from phalanx.spec.pool import PoolSpec
from phalanx.spec.scheduler import KubernetesSpec


class PodResources(msgspec.Struct, frozen=True):
    """Limits of a container, in Kubernetes' notation."""

    limits: dict[str, str | int] = {}


class PodContainer(msgspec.Struct, frozen=True):
    """A container of a pod."""

    name: str
    resources: PodResources = PodResources()


class PodSpec(msgspec.Struct, frozen=True):
    """Containers of a pod."""

    containers: list[PodContainer]


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """State and address of a pod."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class PodMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Name of a pod, and whether it is being deleted."""

    name: str
    deletion_timestamp: str | None = None


class Pod(msgspec.Struct, frozen=True):
    """What is used of a pod's description."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus = PodStatus()


class PodList(msgspec.Struct, frozen=True):
    """Answer of `kubectl get pods`."""

    items: list[Pod]


class KubernetesScheduler(Scheduler):
    """The cluster that runs the pods of a pool."""

    @override
    def machines(self, defaults: Mapping[str, object]) -> list[dict[str, object]]:
        spec = self._settings
        wanted = ("get", "pods", f"--selector={spec.selector}", "--output=json")
        answer = ask_engine(spec.name, "kubectl", *self._options, *wanted)
        try:
            pods = msgspec.json.decode(answer, type=PodList).items
        except msgspec.DecodeError as error:
            raise SpecError(
                f"`kubectl get pods` answers what no cluster answers: {error}"
            ) from None
        ready = [
            pod
            for pod in pods
            if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        ]
        if not ready:
            raise SpecError(
                f"no pod with the labels '{spec.selector}' is running ({len(pods)} have them); "
                "start them first, and check 'selector' and 'namespace' of the pool"
            )
        return [self._machine(pod) for pod in ready]

    @override
    @contextmanager
    def routes(self, pool: PoolSpec) -> Iterator[RouteMaker]:
        container, options = self._settings.container, self._options
        yield lambda machine: ExecRoute(machine, options=options, container=container)

    @property
    def _settings(self) -> KubernetesSpec:
        assert isinstance(self.spec, KubernetesSpec)
        return self.spec

    @property
    def _options(self) -> tuple[str, ...]:
        spec = self._settings
        both = {"context": spec.context, "namespace": spec.namespace}
        return tuple(f"--{key}={value}" for key, value in both.items() if value is not None)

    def _machine(self, pod: Pod) -> dict[str, object]:
        wanted = self._settings.container
        one = next((one for one in pod.spec.containers if wanted in (None, one.name)), None)
        machine: dict[str, object] = {"host": pod.metadata.name, "address": pod.status.pod_ip}
        cores = None if one is None else cores_of(one.resources.limits.get("cpu"))
        return machine if cores is None else {**machine, "cores": cores}


def cores_of(quantity: str | int | None) -> float | None:
    """Return the cores of a CPU limit such as `2`, `1.5` or `500m`; None: there is none."""
    text = str(quantity or "")
    share, unit = (text[:-1], 1000.0) if text.endswith("m") else (text, 1.0)
    try:
        return float(share) / unit or None
    except ValueError:
        return None
