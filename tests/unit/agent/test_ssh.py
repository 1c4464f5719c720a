"""How ssh is called, and what its messages are taken for."""

from __future__ import annotations

import pytest

from phalanx.agent.piped import quote_path
from phalanx.agent.ssh import SshRoute, explain
from phalanx.spec.machine import MachineSpec

MACHINE = MachineSpec(host="alpha", user="ada", port=2222, key="/keys/id")


def options(command: list[str]) -> list[str]:
    return [command[at + 1] for at, word in enumerate(command) if word == "-o"]


def test_the_command_never_asks_and_has_a_deadline() -> None:
    command = SshRoute(MACHINE, "/etc/my_config").command("true")
    assert command[0] == "ssh"
    assert command[-3:] == ["--", "alpha", "true"], "a host can never be taken for an option"
    assert {"BatchMode=yes", "ConnectTimeout=10"} <= set(options(command))
    # Whatever the user's config says: a machine has no use for the keys in their agent.
    assert {"ForwardAgent=no", "ClearAllForwardings=yes"} <= set(options(command))
    assert {"IdentityFile=/keys/id", "IdentitiesOnly=yes"} <= set(options(command))
    for pair in (["-F", "/etc/my_config"], ["-l", "ada"], ["-p", "2222"]):
        at = command.index(pair[0])
        assert command[at : at + 2] == pair


def test_the_users_own_config_holds_where_the_pool_says_nothing() -> None:
    command = SshRoute(MachineSpec(host="alpha")).command("true")
    assert not {"-F", "-l", "-p", "-i"} & set(command)
    assert not any(one.startswith(("Identity", "Control", "Strict")) for one in options(command))


def test_agents() -> None:
    only = SshRoute(MachineSpec(host="a", agent=True)).command("true")
    never = SshRoute(MachineSpec(host="a", agent=False)).command("true")
    assert "IdentityFile=none" in options(only)
    assert "IdentityAgent=none" in options(never)


def test_paths_are_quoted_and_home_still_means_home() -> None:
    assert quote_path("~/my env/bin/python") == "~/'my env/bin/python'"
    assert quote_path("/opt/a b;rm") == "'/opt/a b;rm'"
    assert quote_path("~$(x)/y") == "'~$(x)/y'"


@pytest.mark.parametrize(
    ("said", "code", "kind", "reason"),
    [
        (
            "ssh: connect to host 10.77.0.12 port 22: Connection timed out\r\n",
            255,
            "unreachable",
            "ssh: connect to host 10.77.0.12 port 22: Connection timed out",
        ),
        (
            "ssh: Could not resolve hostname x: Name or service not known\n",
            255,
            "unknown_host",
            "ssh: Could not resolve hostname x: Name or service not known",
        ),
        (
            "Warning: Permanently added 'a' (ED25519) to the list of known hosts.\n"
            "root@a: Permission denied (publickey).\n",
            255,
            "key",
            "root@a: Permission denied (publickey)",
        ),
        (
            "no such identity: /k: No such file or directory\nada@a: Permission denied.\n",
            255,
            "key",
            "no such identity: /k: No such file or directory",
        ),
        (
            "No ED25519 host key is known for a and you have requested strict checking.\n"
            "Host key verification failed.\n",
            255,
            "host_key",
            "Host key verification failed",
        ),
        ("bash: line 1: /x/python: No such file or directory\n", 127, "python", "bash: line 1"),
        ("", 255, "broken", "ssh ended with code 255"),
        ("", None, "slow", "no answer in time"),
        ("Traceback\nMemoryError\n", 1, "broken", "MemoryError"),
    ],
)
def test_messages(said: str, code: int | None, kind: str, reason: str) -> None:
    fault = explain(MACHINE, said, code)
    assert (fault.machine, fault.kind) == ("alpha", kind)
    assert fault.reason.startswith(reason)
    assert "\n" not in fault.reason
