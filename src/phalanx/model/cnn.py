"""Two small convolutional networks: `cnn` and `mnist-cnn`.

`mnist-cnn` is the widely published MNIST network: convolutions of 32 and 64 filters, pooling,
dropout 0.25, dense 128, dropout 0.5. Convolutions use no padding, as published, so images shrink by
two pixels at each.
"""

from __future__ import annotations

from torch import Tensor, nn

from phalanx.model.initial import initialise
from phalanx.model.shape import flatten_rows, image_shape
from phalanx.spec.model import CnnSpec, MnistCnnSpec


class ConvolutionalNet(nn.Module):
    """Convolutions on images, then dense layers."""

    def __init__(self, *, features: nn.Sequential, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        logits: Tensor = self.classifier(flatten_rows(self.features(images)))
        return logits


def build_cnn(spec: CnnSpec, *, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build conv 3x3, max-pool 2, dense, logits: 347,146 parameters on 28x28x1 (32 filters, 64)."""
    height, width, channels = image_shape(input_shape, model="cnn", min_pixels=4)
    pooled = ((height - 2) // 2) * ((width - 2) // 2)
    model = ConvolutionalNet(
        features=nn.Sequential(
            nn.Conv2d(channels, spec.filters, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        ),
        classifier=nn.Sequential(
            nn.Linear(pooled * spec.filters, spec.dense),
            nn.ReLU(inplace=True),
            nn.Linear(spec.dense, num_classes),
        ),
    )
    initialise(model, convolutions="glorot-uniform", dense="glorot-uniform")
    return model


def build_mnist_cnn(
    spec: MnistCnnSpec, *, input_shape: tuple[int, ...], num_classes: int
) -> nn.Module:
    """Build `mnist-cnn`: 1,199,882 parameters on 28x28x1; deterministic without `spec.dropout`."""
    height, width, channels = image_shape(input_shape, model="mnist-cnn", min_pixels=6)
    pooled = ((height - 4) // 2) * ((width - 4) // 2)
    early, late = (0.25, 0.5) if spec.dropout else (0.0, 0.0)
    model = ConvolutionalNet(
        features=nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Dropout(early),
        ),
        classifier=nn.Sequential(
            nn.Linear(pooled * 64, 128),
            nn.ReLU(inplace=True),
            nn.Dropout(late),
            nn.Linear(128, num_classes),
        ),
    )
    initialise(model, convolutions="glorot-uniform", dense="glorot-uniform")
    return model
