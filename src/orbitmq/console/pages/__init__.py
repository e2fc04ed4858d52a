"""The pages, one module per area. Each has functions that read, and the actions that change something."""
