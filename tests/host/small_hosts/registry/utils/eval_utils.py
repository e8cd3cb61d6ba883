import torch
from toy import Record


def get_accuracy(model, data_loader, dataset_name, domain_name):
    correct = 0
    with torch.no_grad():
        for x, y in data_loader:
            logits = model(x)
            Record.add(logits)
            correct += (logits.argmax(1) == y).sum().item()
    return correct / len(data_loader.dataset)
