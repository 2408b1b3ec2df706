"""What the demonstration looks like: the four panels, the method, and what it cannot show."""

from mjp.report.table import FigureFile, Section

PANELS, METHOD = "demo panels", "demo"
PANELS_FILE, METHOD_FILE = "panels.png", "method.png"
TITLE = "Masked Jigsaw Puzzle, on your machine"
LEAD = (
    "Two pairs of small vision transformers were trained on this machine, one pair on each of two "
    "data sets, without and with MJP position embeddings; then their accuracy, their answers to "
    "jigsaws and their position embeddings were measured, and gradients attacked. All pictures and "
    "numbers below come from that."
)
CHAPTER = "The demonstration"

SECTIONS = (
    Section(
        "panels",
        "",
        "What a gradient gives away",
        template="demo_panels.html",
        files=(
            FigureFile(
                PANELS_FILE,
                "From left to right: a photograph, and what an attacking server rebuilds of it "
                "from one gradient: of a plain ViT, of one with MJP, and of one with MJP by an "
                "attacker who knows MJP.",
                alt="Four pictures: a photograph, and what three attackers rebuilt of it",
            ),
        ),
        also=frozenset({PANELS}),
    ),
    Section(
        "scale",
        CHAPTER,
        "What this small scale shows",
        template="demo_scale.html",
        also=frozenset({PANELS}),
    ),
    Section(
        "demo-method",
        CHAPTER,
        "The method on a photograph",
        template="demo_method.html",
        files=(
            FigureFile(
                METHOD_FILE,
                "The method on a photograph, with random weights. The last panel is a warning: "
                "masked positions get a gradient of exactly zero, so the mask itself is seen.",
                alt="Six panels: photograph, masked blocks, jigsaw, its inverse, identity, "
                "gradient",
            ),
        ),
        also=frozenset({METHOD}),
    ),
)
