import torch
from toy import Record, ToyNet


def load_model(name):
    return ToyNet().eval()


def clean_accuracy(model, x, y, batch_size=100, device=None):
    correct = 0
    with torch.no_grad():
        for start in range(0, len(x), batch_size):
            logits = model(x[start : start + batch_size])
            Record.add(logits)
            correct += (logits.argmax(1) == y[start : start + batch_size]).sum().item()
    return correct / len(x)
