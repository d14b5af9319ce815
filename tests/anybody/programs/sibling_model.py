import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(5, 5)

    def compute_loss(self, x):
        return (self.body(x) - x).pow(2).mean()
