from toy import images


def load_cifar10c(n_examples, severity, data_dir, shuffle, corruptions):
    return images(corruptions[0], n_examples)
