"""How a model is spread over ranks and over memory."""
