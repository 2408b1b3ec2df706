"""`import mjp.timm` makes `timm.create_model("mjp_<timm name>")` work."""

from mjp.models import factory as factory  # Importing it registers the names.
