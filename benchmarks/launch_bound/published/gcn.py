"""A graph network: two convolutions on a citation graph, all of it in every step."""

import torch
from torch import nn
from torch.nn import functional as F


TITLE = "GCN: the whole graph each step, index_add, accuracy of three sets read each epoch"
STEPS = 300


class GCNConv(nn.Module):
    """Sums what the neighbours say, each with its weight."""

    def __init__(self, num_in, num_out):
        super().__init__()
        self.lin = nn.Linear(num_in, num_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, x, edge_index, edge_weight):
        """Return features, [N, num_out]; edges, [2, E], go from the first row to the second."""
        x = self.lin(x)
        messages = x[edge_index[0]] * edge_weight.unsqueeze(1)
        return torch.zeros_like(x).index_add(0, edge_index[1], messages) + self.bias


class GCN(nn.Module):
    """Two convolutions, with dropout before each."""

    def __init__(self, num_in, width, num_classes):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(num_in, width), GCNConv(width, num_classes)

    def forward(self, x, edge_index, edge_weight):
        """Return logits, [N, num_classes]."""
        x = F.dropout(x, p=0.5, training=self.training)
        x = F.relu(self.conv1(x, edge_index, edge_weight))
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index, edge_weight)


class Citations:
    """Papers that mostly cite those of their own class."""

    def __init__(self, num_nodes, num_features, num_classes=7):
        draw = torch.Generator().manual_seed(0)
        self.num_classes = num_classes
        self.y = torch.randint(num_classes, (num_nodes,), generator=draw)
        words = torch.rand(num_nodes, num_features, generator=draw)
        words[torch.arange(num_nodes), self.y] += 0.5
        self.x = words / words.sum(dim=1, keepdim=True)
        source = torch.randint(num_nodes, (4 * num_nodes,), generator=draw)
        near = torch.randint(num_nodes // num_classes, (4 * num_nodes,), generator=draw)
        order = self.y.argsort()
        target = order[(self.y[source] * (num_nodes // num_classes) + near) % num_nodes]
        loops = torch.arange(num_nodes)
        edges = torch.stack([torch.cat([source, loops]), torch.cat([target, loops])])
        self.edge_index = torch.cat([edges, edges[:, : 4 * num_nodes].flip(0)], dim=1)
        degree = torch.bincount(self.edge_index[1], minlength=num_nodes).float().rsqrt()
        self.edge_weight = degree[self.edge_index].prod(dim=0)
        lots = torch.rand(num_nodes, generator=draw)
        self.train_mask, self.test_mask = lots < 0.2, lots > 0.5
        self.val_mask = ~(self.train_mask | self.test_mask)

    def to(self, device):
        """Move all tensors."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.to(device))
        return self


@torch.no_grad()
def test(model, data):
    """Return the accuracies on the three sets."""
    model.eval()
    pred = model(data.x, data.edge_index, data.edge_weight).argmax(dim=-1)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


def train(args):
    """Train; return the model."""
    device = args.device
    num_nodes, num_features = (70, 16) if args.is_small else (2708, 1433)
    data = Citations(num_nodes, num_features).to(device)
    model = GCN(num_features, 16, data.num_classes).to(device)
    groups = [
        {"params": model.conv1.parameters(), "weight_decay": 5e-4},
        {"params": model.conv2.parameters(), "weight_decay": 0},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    best_val_acc = 0.0
    for _ in args.iterations:
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index, data.edge_weight)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        train_acc, val_acc, test_acc = test(model, data)
        best_val_acc = max(best_val_acc, val_acc)
        args.log(loss=loss.item(), train=train_acc, val=val_acc, test=test_acc, best=best_val_acc)
    return model
