import torch
from torch import nn

torch.manual_seed(1234)
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.linspace(0, 1, 32).view(-1, 1).requires_grad_(True)

for it in range(61):
    u = net(x)
    du = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    ddu = torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)[0]
    residual = ((ddu + torch.sin(x)) ** 2).mean()
    boundary = net(torch.zeros(1, 1)) ** 2 + net(torch.ones(1, 1)) ** 2
    loss = residual + boundary.squeeze()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 20 == 0:
        print("It %d, loss %.9e" % (it, loss.item()))
torch.save(net, "net.pt")
