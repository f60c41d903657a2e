"""From a suspect and a key to a verdict: what is read, what was chosen, what is proven, in which words."""
