"""TensorFlow's ParameterServerStrategy on one machine, written as its own guide recommends.

A chief, workers and one server (`ps`) as processes on loopback, a Keras 3 model in a custom loop,
and a ClusterCoordinator that schedules steps and joins. Everything the guide says about speed is
done: steps are packed into one scheduled function, each worker has its own dataset, and results are
not fetched. Batches lie in memory ready made, so that TensorFlow has no work per sample. Started by
`async_updates.py`; needs the `tensorflow` extra. For each number on standard input it does so many
updates and prints how long they took, as JSON.

    echo 2000 | python benchmarks/tensorflow_server.py --data mnist-like.npz [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

LIMIT_S = 300.0
STOP_S = 5.0


def free_addresses(count: int) -> list[str]:
    """Addresses whose ports the system says are free."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


@contextmanager
def running(cluster: dict[str, list[str]], inter_op: int) -> Iterator[None]:
    """Workers and servers as processes, until the block ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for role in ("worker", "ps"):
            for index in range(len(cluster[role])):
                config = {"cluster": cluster, "task": {"type": role, "index": index}}
                command = [sys.executable, __file__, "--inter-op", str(inter_op)]
                environment = os.environ | {"TF_CONFIG": json.dumps(config)}
                started.append(subprocess.Popen(command, env=environment))
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def serve(inter_op: int) -> None:
    """The body of a worker or a server: does what the chief says until it is ended."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    config = tf.compat.v1.ConfigProto()
    config.intra_op_parallelism_threads = 1
    # With one thread, an operation that waits for the network blocks the one it waits for.
    config.inter_op_parallelism_threads = inter_op
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=config,
    )
    server.join()


def make_steps(options: argparse.Namespace, resolver: Any) -> tuple[Any, Callable[[], None]]:
    """The coordinator, and what schedules one packed function on it."""
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with np.load(options.data) as arrays:
        size = len(arrays["x"]) // options.batch * options.batch
        inputs = arrays["x"][:size].reshape(-1, options.batch, 784)
        targets = arrays["y"][:size].reshape(-1, options.batch).astype(np.int32)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(300, activation="relu"),
                keras.layers.Dense(100, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.SGD(options.lr)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def make_dataset() -> Any:
        batches = tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat()
        batches = batches.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y))
        return batches.prefetch(2)

    def replica_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def packed(iterator: Any) -> None:
        for _ in tf.range(options.pack):
            strategy.run(replica_step, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
    return coordinator, lambda: coordinator.schedule(packed, args=(iterator,))


def lead(options: argparse.Namespace) -> None:
    """The body of the chief: start the cluster, warm up, then time a round for each line read."""
    addresses = free_addresses(options.workers + 1)
    cluster = {"worker": addresses[:-1], "ps": addresses[-1:]}
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    with running(cluster, options.inter_op):
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"
        )
        coordinator, schedule = make_steps(options, resolver)

        def timed(updates: int) -> dict[str, float]:
            count = updates // options.pack
            began = time.perf_counter()
            for _ in range(count):
                schedule()
            coordinator.join()
            seconds = time.perf_counter() - began
            return {"updates": count * options.pack, "seconds": seconds}

        timed(options.warm_up)
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(timed(int(line))), flush=True)


def main() -> None:
    """Be whatever the environment says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a .npz file with x (uint8, 784 each) and y")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--warm-up", type=int, default=400)
    parser.add_argument("--pack", type=int, default=10, help="steps in one scheduled function")
    parser.add_argument("--inter-op", type=int, default=2, help="threads for operations; 1 hangs")
    options = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        serve(options.inter_op)
    else:
        lead(options)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    main()
