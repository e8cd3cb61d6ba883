from torch.utils.data import DataLoader, TensorDataset
from toy import images


def get_test_loader(domain_name, batch_size, num_examples):
    return DataLoader(TensorDataset(*images(domain_name, num_examples)), batch_size=batch_size)


def get_source_loader(dataset_name, adaptation, preprocess, data_root_dir, batch_size, num_samples=-1, workers=4):
    data = TensorDataset(*images("source", 64))
    return data, DataLoader(data, batch_size=batch_size)
