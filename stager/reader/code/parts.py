"""How people are told of the parts of a key."""


def say_part(name: str, kind: str) -> str:
    """What a person calls a part: the constant RATE of preprocess."""
    if kind == "default":
        function, argument = name.removesuffix(")").rsplit("(", 1)
        return f"the default of {argument} of {function}"
    if kind == "closure":
        function, variable = name.removesuffix("]").rsplit("[", 1)
        return f"the closure's {variable} of {function}"
    if kind == "bound":
        return f"what {name} is bound to"
    if kind == "constant":
        module, _, constant = name.rpartition(".")
        return f"the constant {constant} of {module}"
    return name
