import torch

torch.manual_seed(0)
x = torch.linspace(-1, 1, 40).unsqueeze(1)
y = torch.sin(3 * x) + 0.1 * torch.randn(40, 1)
model = torch.nn.Sequential(torch.nn.Linear(1, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))
criterion = torch.nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=6)
for i in range(10):
    print("STEP:", i)

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        print("loss:", loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)
torch.save(optimizer.state_dict(), "lbfgs.pt")
