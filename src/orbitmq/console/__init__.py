"""The web console: pages over ``orbitmq.admin`` and the client. It has no other way into a broker.

Needs the extra ``console`` (starlette, uvicorn, jinja2, python-multipart).
"""
