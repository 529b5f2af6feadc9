"""The server: OpenAI-compatible chat completions with a method and its trace per request.

`app.create_app` makes the application, `engine.Engine` is the one thread that runs a model, `running.serve`
puts both behind uvicorn. See docs/server.md and docs/security.md.
"""
