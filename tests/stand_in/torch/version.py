"""torch.version of a CUDA build."""

cuda = "13.0"
hip = None
