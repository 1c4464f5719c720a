"""The page docs/ref-pool.md, written from the models so that it cannot disagree with them.

`docs/generate_ref_pool.py` writes the page; a test compares the two.
"""

from __future__ import annotations

from job_reference import settings_table

from phalanx.spec.base import Spec
from phalanx.spec.cluster import ClusterSpec, HostSpec
from phalanx.spec.machine import DefaultsSpec, GpuSpec, MachineSpec
from phalanx.spec.pool import InventorySpec, PoolSpec
from phalanx.spec.scheduler import KubernetesSpec, RaySpec, SlurmSpec, SparkSpec

POOL_EXAMPLE = """\
pool: lab
defaults: {user: ada, python: ~/phalanx/.venv/bin/python}
machines:
  - host: 192.0.2.11
    name: alpha
    price_per_hour: 0.12
    watts_idle: 35
    watts_full: 95
    labels: [rack-a]
  - host: beta                          # an alias of ~/.ssh/config
    key: ~/.ssh/lab_ed25519
    cores: 4                            # lend 4, whatever it has
    memory: 8GB
    gpu: {count: 1, model: RTX 2060, memory: 6GB}
    slots: 2
"""

CLUSTER_EXAMPLE = """\
cluster: lab
hosts:
  - {name: a, cores: 0.5, memory: 1GB, link: 100Mbit/s, price_per_hour: 0.1}
  - {name: b, cores: 1, memory: 2GB, link: 1Gbit/s, price_per_hour: 0.3, labels: [fast]}
"""

_HEAD = f"""\
<!-- Written by docs/generate_ref_pool.py from the models in src/phalanx/spec; edit those. -->

# The pool file

A pool file is YAML 1.2 and describes machines once: how they are reached, what they may lend, what
they cost. [how-to-pool](how-to-pool.md) tells how it is used.

```yaml
{POOL_EXAMPLE}```

Instead of listing machines a pool may take those that a scheduler has lent, as in
`scheduler: slurm`
([how-to-slurm](how-to-slurm.md), [how-to-spark](how-to-spark.md),
[how-to-ray](how-to-ray.md), [how-to-kubernetes](how-to-kubernetes.md)).

Machines are reached with the system's OpenSSH under your own ssh config; whatever `ssh HOST` does
without asking works here. Passwords are refused: any reader of the file could log in, and ssh
without a terminal cannot use one. Sizes are written `8GB` (10^9 bytes) or `8GiB` (2^30 bytes).

## The pool
"""

_SELECTION = """\

# Policies and filters

| Policy | Selects |
|---|---|
| `all` | every machine |
| `cpu` | machines without a GPU |
| `gpu` | machines with at least one |
| `energy` | machines with `energy_efficient: true`; where it is not set, those that compute at \
least as much per joule (measured GFLOP/s by `watts_full`) as the median |
| `fastest`, `fastest:3` | the fastest, or the three fastest: by measured GEMM speed, or by \
`cores` if not all are measured |
| `cheapest`, `cheapest:3` | the cheapest by `price_per_hour`, or the three cheapest |

The published names `-all`, `-cpus`, `-gpus` and `-energy` are understood as well. Selected
machines keep the order of the file.

| Filter | Passes |
|---|---|
| `cpus: 4+` | at least 4 cores; `cores: 4+` means the same |
| `cpus: 4-` | at most 4 |
| `cpus: 4` | exactly 4 |
| `cpus: 4..8` | 4 to 8 |
| `memory: 8GB+`, `disk: 50GB+` | sizes: memory that may be used, free disk |
| `gpus`, `slots`, `speed` (GFLOP/s), `price` (per hour), `watts` (full) | numbers, as with `cpus` |
| `label=rack-a` | machines with this label |
| `name=alpha` | the machine of this name |
| `model=Xeon` | machines whose processor is called so, in part |

`:` and `=` mean the same. Several filters must all pass. A machine of which the asked value is not
known does not pass.

What is declared limits and what is measured corrects: with `cores: 4` and 8 found, 4 are used; with
`cores: 16` and 8 found, 8, and a sentence says so. A declared graphics card that torch cannot use
does not count.

# Inventories of other formats

`inventory` takes the machines from a file of another format, read by a function of your own or of
an installed package (entry points `phalanx.inventories`). It takes the path and returns a
`phalanx.spec.pool_file.ReadInventory`: machines as above, the line of each, and notes about what
it repaired. `recipes/resource-selection/phalanx_blueprint` is an example: it reads the JSON
inventory of a published resource optimiser, repairs it with a message for each fault (missing and
superfluous commas, bare `yes` and `no`, curly quotes, numbers in quotes) and leaves passwords out.
"""

_CLUSTER = f"""\

# The cluster file

Describes an emulated cluster for `phalanx pool emulate`.

```yaml
{CLUSTER_EXAMPLE}```
"""


def pool_page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, *settings_table(PoolSpec)]
    parts += _section("defaults", DefaultsSpec)
    parts += _section("inventory", InventorySpec)
    parts += _section("scheduler: slurm", SlurmSpec)
    parts += _section("scheduler: ray", RaySpec)
    parts += _section("scheduler: spark", SparkSpec)
    parts += _section("scheduler: kubernetes", KubernetesSpec)
    parts += _section("machines", MachineSpec)
    parts += _section("machines.gpu", GpuSpec)
    parts += [_SELECTION, _CLUSTER, *settings_table(ClusterSpec)]
    parts += _section("hosts", HostSpec)
    return "\n".join(parts).rstrip() + "\n"


def _section(title: str, spec: type[Spec]) -> list[str]:
    text = " ".join((spec.__doc__ or "").split())
    return [f"\n## {title}\n", f"{text}\n", *settings_table(spec)]
