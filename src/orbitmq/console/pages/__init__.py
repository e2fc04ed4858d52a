"""The pages, one module per area, each with its read functions and its actions."""
