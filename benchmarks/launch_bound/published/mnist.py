"""Digits: a small convolutional network, as the first example of every framework trains it."""

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


TITLE = "MNIST CNN: Adadelta, evaluation each epoch, every 10th loss printed"
STEPS = 300


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        """Return log probabilities, [B, 10], of images, [B, 1, 28, 28]."""
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def make_digits(count, seed):
    """Return noisy images with a bright row that tells the label."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=draw)
    images = torch.rand(count, 1, 28, 28, generator=draw)
    images[torch.arange(count), 0, 2 * labels + 4] += 1.0
    return TensorDataset((images - 0.52) / 0.34, labels)


def test(model, device, test_loader, args):
    """Log loss and accuracy on the test set."""
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    count = len(test_loader.dataset)
    args.log(test_loss=test_loss / count, accuracy=correct / count)


def train(args):
    """Train; return the model."""
    device = args.device
    batch_size, test_batch_size = (4, 8) if args.is_small else (64, 1000)
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader_args["pin_memory"] = device.type == "cuda"
    train_loader = DataLoader(
        make_digits(args.steps * batch_size, 1), batch_size, shuffle=True, **loader_args
    )
    test_loader = DataLoader(make_digits(2 * test_batch_size, 2), test_batch_size, **loader_args)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in args.epochs:
        model.train()
        for batch_idx, (data, target) in enumerate(args.progress(train_loader)):
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            output = model(data)
            loss = F.nll_loss(output, target)
            loss.backward()
            optimizer.step()
            if batch_idx % 10 == 0:
                args.log(loss=loss.item())
        test(model, device, test_loader, args)
        scheduler.step()
    return model
