"""NumPy in, NumPy out: arrays as cameras and files give them, results as arrays."""

import numpy as np
from sklearn.datasets import load_digits

import randens

images, labels = (load_digits().images * 15.9).astype(np.uint8)[..., None], load_digits().target
net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
result = randens.evaluate(net, (images[:50], labels[:50]), "fast", eps="8/255")
print(result.notes)
assert isinstance(result, randens.evaluation.Evaluation)
print(type(result.x_adv).__name__, result.x_adv.shape, result.errors.mean(axis=0))
print(result.to_frame()[["classifier", "natural", "robust"]])
