"""The public names of mjp, each from the room that owns it."""

from mjp.core.errors import CheckpointError as CheckpointError
from mjp.core.errors import ConfigError as ConfigError
from mjp.core.errors import MjpError as MjpError
from mjp.core.errors import UnsupportedModelError as UnsupportedModelError
from mjp.core.seeds import generator_for as generator_for
from mjp.jigsaw import JigsawPlan as JigsawPlan
from mjp.jigsaw import PatchGrid as PatchGrid
from mjp.jigsaw import sample_plan as sample_plan
from mjp.models.checkpoint import load as load
from mjp.models.checkpoint import pretrained as pretrained
from mjp.models.checkpoint import save as save
from mjp.models.config import VARIANTS as VARIANTS
from mjp.models.config import MJPConfig as MJPConfig
from mjp.models.factory import create_model as create_model
from mjp.models.factory import wrap as wrap
from mjp.models.locator import LossTerms as LossTerms
from mjp.models.weights import load_weights as load_weights
from mjp.privacy.attacking import attack as attack
from mjp.privacy.attacking import attacks as attacks
from mjp.privacy.defences import Defence as Defence
from mjp.privacy.defences import parse_defence as parse_defence
from mjp.privacy.public import PublicModel as PublicModel
from mjp.privacy.result import AttackResult as AttackResult
from mjp.privacy.sharing import share as share
from mjp.privacy.update import SharedUpdate as SharedUpdate
from mjp.train.weighting import LocalizationWeight as LocalizationWeight
