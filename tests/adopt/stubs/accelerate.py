"""The calls of Accelerate's Accelerator that a script of one process makes."""

import torch


class Accelerator:
    device = torch.device("cpu")
    is_main_process = True

    def prepare(self, *objects):
        return objects

    def backward(self, loss):
        loss.backward()

    def clip_grad_norm_(self, parameters, norm):
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    def gather_for_metrics(self, values):
        return values

    def unwrap_model(self, model):
        return model

    def wait_for_everyone(self):
        pass

    def print(self, *words):
        print(*words)

    def save(self, state, path):
        torch.save(state, path)
