import keras
import numpy as np
from keras import layers

x_train = np.random.default_rng(0).random((64, 28, 28, 1))
y_train = np.zeros(64)
model = keras.Sequential([keras.Input((28, 28, 1)), layers.Flatten(), layers.Dense(10)])
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=2, validation_split=0.1)
