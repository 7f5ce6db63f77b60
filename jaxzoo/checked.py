"""How a config refuses a value: one line with class, field, value received, rule and remedy."""


class Checked:
    """Base of config dataclasses, which check themselves in `__post_init__`."""

    def require(self, field: str, holds: bool, rule: str, remedy: str = "") -> None:
        """Raises `ValueError` with class, field, value received, rule and remedy unless `holds`."""
        if not holds:
            remedy = f"; {remedy}" if remedy else ""
            raise ValueError(f"{type(self).__name__}.{field}={getattr(self, field)!r} {rule}{remedy}")
