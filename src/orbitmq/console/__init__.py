"""The web console, whose pages use only ``orbitmq.admin`` and the client to access brokers.

Requires the extra ``console`` (starlette, uvicorn, jinja2, python-multipart).
"""
