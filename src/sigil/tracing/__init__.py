"""Who leaked: which client's local model a suspect is most likely to come from."""
