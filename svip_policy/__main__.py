"""``python -m svip_policy`` is the ``svip`` command."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
