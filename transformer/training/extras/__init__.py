"""Parts of training that run only where a config asks for them."""
