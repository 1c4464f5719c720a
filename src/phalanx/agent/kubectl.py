"""Build `kubectl exec` commands to a pod, and classify their failures.

The agent runs in the pod's container and ends with its input, so with `kubectl`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from typing_extensions import override

from phalanx.agent.line import Fault
from phalanx.agent.piped import CommandRoute, FailureText

_FAILURES = FailureText(
    noise=re.compile(r"^(Defaulted container|command terminated with exit code|\s*$)"),
    kinds=(
        (r"pods? \"?.*\"? not found|container .* not found", "unknown_host"),
        (r"forbidden|unauthorized|must be logged in", "key"),
        (r"unable to connect|connection refused|no such host|i/o timeout", "unreachable"),
        (r"not found|no such file or directory|modulenotfounderror", "python"),
    ),
    advice={
        "unknown_host": "check the pods with `kubectl get pods`",
        "key": "your account needs the right to `create` on `pods/exec`",
        "unreachable": "check your kubeconfig and the cluster's address",
        "python": "set 'defaults: {python: ...}' of the pool to the interpreter of the image",
        "slow": "its node may be overloaded",
    },
    otherwise="try the same with `kubectl exec` by hand",
)


@dataclass(frozen=True)
class ExecRoute(CommandRoute):
    """Way to one pod.

    Attributes:
        options: Of every `kubectl` command: context and namespace.
        container: Container of the pod; None: its default one.
    """

    options: tuple[str, ...] = field(default=(), kw_only=True)
    container: str | None = field(default=None, kw_only=True)

    @override
    def command(self, remote: str) -> list[str]:
        container = () if self.container is None else (f"--container={self.container}",)
        pod = self.machine.host
        return [
            *("kubectl", *self.options, "exec", "--stdin", *container, pod),
            *("--", "sh", "-c", remote),
        ]

    @override
    def explain(self, said: str, exit_code: int | None) -> Fault:
        return _FAILURES.explain(self.machine.title, "kubectl", said, exit_code)
