import argparse


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_adaptation_method", default="tent", choices=["no_adaptation", "tent", "shot"])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--ckpt_path", default="./ckpt/toy.pth")
    parser.add_argument("--lr", default=1e-3, type=float)
    parser.add_argument("--n_train_steps", default=1, type=int)
    parser.add_argument("--model_selection_method", default="last_iterate")
    parser.add_argument("--episodic", default="false")
    return parser.parse_args()
