"""Language models made of mixers, and the papers' models by name."""

from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig, ModelState

__all__ = ["LanguageModel", "LanguageModelConfig", "ModelState"]
