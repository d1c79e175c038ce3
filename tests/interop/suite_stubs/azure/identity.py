class DefaultAzureCredential:
    """Imported by their tests and never made."""

    def __init__(self) -> None:
        raise AssertionError("there is no Entra ID here")
