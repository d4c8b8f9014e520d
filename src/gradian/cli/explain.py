"""`gradian explain`."""

from typing import Annotated

from cyclopts import Parameter


def explain(
    id: Annotated[str, Parameter(help="The id of a check, such as data.truncated_completion.")],
) -> int:
    """Explain a check: what it means, why it hurts, how to fix it, where this is known from."""
    from gradian.audit.explain import explain_check

    print(explain_check(id))
    return 0
