"""Memory budgets in tests: @pytest.mark.gpu_memory(peak="2 GiB", growth=0)."""
