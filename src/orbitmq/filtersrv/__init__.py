"""Filter servers, from which consumers pull only the messages that a Python class selects. Off by default, and never
part of a broker process."""
