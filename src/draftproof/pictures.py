"""How curves are told apart in every picture: at half size, in grey, and one above another."""

STYLES = (  # marker, dash, shade
    *(("o", "-", "#000000"), ("s", "--", "#b2182b"), ("^", "-.", "#2166ac")),
    *(("D", ":", "#1b7837"), ("v", (0, (5, 1)), "#762a83"), ("X", (0, (1, 3)), "#bf812d")),
    *(("P", (0, (3, 1, 1, 1)), "#525252"), ("*", (0, (7, 3)), "#35978f")),
)
