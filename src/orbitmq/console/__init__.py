"""The web console: pages built on ``orbitmq.admin`` and the client. It has no other access to a broker.

Needs the extra ``console`` (starlette, uvicorn, jinja2, python-multipart).
"""
