from torch.utils.data import DataLoader, TensorDataset
from toy import images


def load_dataset(dataset, root, batch_size=64, workers=0, split="train", adaptation=None, domain=None):
    data = TensorDataset(*images(domain, 64 if dataset == "cifar10" else 24))
    return data, DataLoader(data, batch_size=batch_size)
