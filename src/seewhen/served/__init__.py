"""Models that somebody else serves: asked over HTTP, by OpenAI's chat completions."""
