def load_dotenv() -> None:
    """The environment is complete."""
