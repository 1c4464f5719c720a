"""Open a run to use what it trained: `phalanx.open_run("last")`.

Loads torch, so nothing of the control plane imports it; `phalanx` offers `open_run` lazily.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from phalanx.data.csv_table import CsvSource
from phalanx.data.dataset import Dataset, Part, open_dataset
from phalanx.data.fields import pack, unpack
from phalanx.data.sources import open_source
from phalanx.engine.inputs import Inputs, inputs_of_fields
from phalanx.engine.loss_functions import find_outputs
from phalanx.errors import DataError, SpecError, StoreError
from phalanx.model.catalogue import build_model
from phalanx.records.events import Epoch, Event, HostSample, NetworkBuilt, ProcessSample, Step
from phalanx.records.log import read_logs
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir, find_run
from phalanx.records.summary import Summary
from phalanx.records.weights import NamedWeights, prepare_inputs, read_weights
from phalanx.spec.data import DataSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.store.atomic import replace_atomically, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

_TABLES: dict[str, tuple[type[Event], ...]] = {
    "steps": (Step,),
    "epochs": (Epoch,),
    "resources": (ProcessSample, HostSample),
}
_ROWS = 256


def open_run(name: str | Path = "last", *, runs: str | Path = "runs") -> TrainedRun:
    """Open a run by name, unique prefix, path, or `last`.

    Args:
        name: Which run.
        runs: Parent of run directories.

    Raises:
        SpecError: There is no such run, or several.
    """
    return TrainedRun(find_run(Path(runs), str(name)))


class TrainedRun:
    """A run and what it trained; files are read when they are asked for."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._manifest = read_manifest(run)

    def __repr__(self) -> str:
        return f"<TrainedRun {self._run.path}>"

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    @property
    def job(self) -> JobSpec:
        """The job with all settings."""
        return job_from_mapping(self._manifest.job)

    @property
    def summary(self) -> Summary:
        """Figures of the whole run, as `phalanx train --json` prints them."""
        found = self._run.read_summary()
        if found is None:
            raise StoreError(f"run {self._run.name} has no summary: it has not ended yet")
        return found

    def weights(self, *, best: bool | None = None) -> NamedWeights:
        """Read tensors by name; `best` as in `state_dict`."""
        return read_weights(self._run, best=best)

    def state_dict(self, *, best: bool | None = None) -> dict[str, Tensor]:
        """Return the trained tensors under the names of `nn.Module.state_dict`.

        Args:
            best: True: of the best checkpoint, False: of the newest; None: of the best if there is
                one.

        Raises:
            StoreError: There is no such checkpoint.
        """
        found = self.weights(best=best).tensors
        return {name: torch.from_numpy(array.copy()) for name, array in found.items()}

    def load_into(self, module: nn.Module, *, best: bool | None = None) -> None:
        """Load the trained tensors into a module; raises `SpecError` if it is another network."""
        try:
            module.load_state_dict(self.state_dict(best=best))
        except RuntimeError as error:
            raise SpecError(f"the weights of {self._run.name} do not fit: {error}") from error

    def load_model(self, *, best: bool | None = None) -> nn.Module:
        """Build the job's network with the trained weights, ready to predict.

        It expects prepared inputs: those of `prepare`, or of the data set's own batches.
        """
        job, network = self.job, self._network()
        dataset_modalities = self._dataset().modalities if job.data.modalities else ()
        module = build_model(
            job.model,
            input_shape=tuple(network.input_shape),
            num_classes=network.num_outputs,
            seed=job.seed,
            modalities=dataset_modalities,
            fields=network.fields,
        )
        self.load_into(module, best=best)
        return module.eval()

    def prepare(self, samples: npt.ArrayLike) -> Tensor:
        """Scale samples as the training did; images of (N, H, W, C) become (N, C, H, W).

        Networks of several inputs take theirs as they are.
        """
        return torch.from_numpy(
            np.ascontiguousarray(prepare_inputs(np.asarray(samples), self._network()))
        )

    def predict(
        self,
        samples: npt.ArrayLike | Mapping[str, npt.ArrayLike] | Part,
        *,
        best: bool | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the network's outputs (of several, its logits or first), one row per sample.

        Args:
            samples: An array as the data set stores it, for networks of several inputs one for
                each, or a part of an opened data set.
            best: As in `state_dict`.
        """
        network = self._network()
        if isinstance(samples, Part):
            stored, rows = samples.inputs, samples.rows
        else:
            stored = self._packed(samples) if network.fields else np.asarray(samples)
            rows = np.arange(len(stored))
        if len(rows) == 0:
            raise StoreError("there are no samples to predict")
        model, found = self.load_model(best=best), []
        with torch.inference_mode():
            for start in range(0, len(rows), _ROWS):
                inputs = self._inputs(stored[rows[start : start + _ROWS]])
                outputs = find_outputs(inputs.pass_to(model))
                if outputs is None:
                    raise StoreError("the network returns no tensor that could be predictions")
                found.append(outputs.float().numpy())
        return np.concatenate(found)

    def _packed(self, samples: object) -> npt.NDArray[np.uint8]:
        fields = self._network().fields
        names = [field.name for field in fields]
        if isinstance(samples, tuple | list):
            samples = dict(zip(names, samples, strict=False))
        if not isinstance(samples, Mapping) or set(samples) != set(names):
            raise StoreError(f"the network takes {', '.join(names)}; give an array for each")
        return pack({name: np.asarray(samples[name]) for name in names}, fields)

    def _inputs(self, stored: npt.NDArray[Any]) -> Inputs:
        network = self._network()
        if network.fields:
            return inputs_of_fields(unpack(stored, network.fields))
        # By the statistics of the training, whatever data set these samples are from.
        prepared = np.ascontiguousarray(prepare_inputs(stored, network))
        return Inputs((torch.from_numpy(prepared),), {})

    def save(self, path: Path, *, best: bool | None = None) -> None:
        """Write the weights; the suffix decides: .safetensors, .pt (state dict) or .onnx (network).

        Raises:
            SpecError: The suffix is none of these, or a package that it needs is missing.
            StoreError: The file cannot be written.
        """
        match path.suffix:
            case ".safetensors":
                self.weights(best=best).write(path)
            case ".pt" | ".pth":
                found = self.state_dict(best=best)
                replace_atomically(path, lambda file: torch.save(found, file))
            case ".onnx":
                self._export_onnx(path, best=best)
            case _:
                raise SpecError(
                    f"cannot write '{path.name}'; end it with .safetensors, .pt or .onnx"
                )

    def _export_onnx(self, path: Path, *, best: bool | None) -> None:
        if find_spec("onnx") is None:
            raise SpecError("writing ONNX needs the package onnx: pip install 'phalanx[onnx]'")
        if self._network().fields:
            raise SpecError("networks of several inputs cannot be written as ONNX; write .pt")
        example = self.prepare(np.zeros((1, *self._network().input_shape), dtype=np.float32))
        content = io.BytesIO()
        torch.onnx.export(
            self.load_model(best=best),
            (example,),
            content,  # type: ignore[arg-type]  # this exporter writes into any file
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_axes={"inputs": {0: "batch"}, "outputs": {0: "batch"}},
            # The other exporter needs one more package and gains nothing for plain networks.
            dynamo=False,
        )
        write_atomically(path, content.getvalue())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes that the network tells apart; empty: their numbers."""
        return tuple(self._network().class_names)

    @property
    def tells_classes_apart(self) -> bool:
        """Whether outputs are scores of classes rather than values, as far as the loss tells."""
        loss = self.job.loss
        return not (loss.is_built_in and (loss.kind.of_values or loss.name == "bce"))

    def open_data(self, name: str | None = None) -> Dataset:
        """Open the run's data set, or another one that is read and prepared the same way."""
        return self._dataset(name)

    def read_inputs(self, table: str) -> npt.NDArray[np.float32] | None:
        """Read new samples from a .csv or .tsv file without targets; None: it is no such file.

        Raises:
            DataError: The table has other columns than the one that was trained on.
        """
        source = open_source(
            self._data_spec(table),
            data_root=Path(self._manifest.data_root),
            cache_root=Path(self._manifest.cache_root),
        )
        if not isinstance(source, CsvSource) or source.has_targets:
            return None
        inputs: npt.NDArray[np.float32] = source.inputs()
        expected = tuple(self._network().input_shape)
        if inputs.shape[1:] != expected:
            raise DataError(
                f"{table} has {inputs.shape[1]} columns of inputs and the network reads "
                f"{expected[0]}; give it the columns of the training, without the target",
                path=table,
            )
        return inputs

    def table(self, what: Literal["steps", "epochs", "resources"]) -> pa.Table:
        """Return recorded events as an Arrow table; `.to_pandas()` makes a data frame of it."""
        import pyarrow as pa
        from msgspec.structs import asdict

        if what not in _TABLES:
            raise SpecError(f"there is no table '{what}' (valid: {', '.join(_TABLES)})")
        logs = read_logs(self._run.path / "events", *_TABLES[what])
        return pa.Table.from_pylist(
            [
                {"process": process, **asdict(event)}
                for process, events in logs.items()
                for event in events
            ]
        )

    def _network(self) -> NetworkBuilt:
        network = self.weights().network
        if network is None:
            raise StoreError(f"run {self._run.name} did not train a torch network")
        return network

    def _data_spec(self, name: str | None) -> DataSpec:
        if name is None:
            return self.job.data
        # A limit is for training: of other data all samples count.
        other = dict(self._manifest.job["data"]) | {"name": name, "limit": None}
        return job_from_mapping(self._manifest.job | {"data": other}).data

    def _dataset(self, name: str | None = None) -> Dataset:
        return open_dataset(
            self._data_spec(name),
            data_root=Path(self._manifest.data_root),
            cache_root=Path(self._manifest.cache_root),
            whole_numbers=self.job.reads_whole_numbers,
        )
