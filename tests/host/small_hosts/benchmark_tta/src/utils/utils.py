import argparse

import torch
from toy import Record


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cfg")
    parser.add_argument("--output_dir", default="out")
    return parser.parse_args()


def get_accuracy(model, data_loader, device=None):
    correct = 0
    with torch.no_grad():
        for x, y in data_loader:
            logits = model(x)
            Record.add(logits)
            correct += (logits.argmax(1) == y).sum().item()
    return correct / len(data_loader.dataset)
