"""Typed reading of a folder's `config.json`, which remembers what was read and refuses what was not."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jaxzoo.config_io import nearest
from jaxzoo.json_files import read_json

T = TypeVar("T")

WITHOUT_EFFECT = frozenset(
    [
        "_name_or_path",
        "_attn_implementation_autoset",
        "architectures",
        "auto_map",
        "attention_dropout",
        "attn_implementation",
        "attn_pdrop",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "embd_pdrop",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_decoder",
        "label2id",
        "length_penalty",
        "max_length",
        "min_length",
        "model_type",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "remove_invalid_values",
        "repetition_penalty",
        "resid_pdrop",
        "return_dict",
        "return_dict_in_generate",
        "router_aux_loss_coef",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tie_encoder_decoder",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "use_bfloat16",
        "use_cache",
    ]
)
"""Fields that say nothing about the function of a trained model: names, dropout rates, defaults of generation."""


class Fields:
    """The fields of a JSON object, read by name and type.

    Args:
      content: the object.
      where: what errors call it.
      ignored: fields, here and in objects within, that may stay unread.
    """

    def __init__(self, content: Mapping[str, Any], where: str, ignored: Collection[str] = ()):
        self.content: Mapping[str, Any] = content
        self.where: str = where
        self._ignored = frozenset(ignored)
        self._read: set[str] = set()

    def integer(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """An integer of at least `low`, under the first of the names that there is.

        Raises:
          ValueError: it is something else, or missing and has no default.
        """
        value = self._get(names, default)
        if type(value) is not int or value < low:
            self.refuse(names[0], f"must be an integer of at least {low}")
        return value

    def number(self, *names: str, default: float | None = None, low: float = 0.0) -> float:
        """A finite number of at least `low`, likewise."""
        value = self._get(names, default)
        if type(value) not in (int, float) or not low <= value < 1e30:
            self.refuse(names[0], f"must be a number of at least {low:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get((name,), default)
        if type(value) is not bool:
            self.refuse(name, "must be true or false")
        return value

    def choice(self, *names: str, of: Mapping[str, T], default: str | None = None) -> T:
        """Meaning of a word."""
        value = self._get(names, default)
        if not isinstance(value, str) or value not in of:
            self.refuse(names[0], f"must be one of {', '.join(of)}, which this library computes")
        return of[value]

    def optional(self, name: str, default: Any = None) -> Any:
        """The value, whatever it is; the default where the field is left out."""
        self._read.add(name)
        return self.content.get(name, default)

    def ignore(self, *names: str) -> None:
        """Lets fields stay unread."""
        self._read.update(names)

    def optional_integer(self, name: str, default: int | None = None) -> int | None:
        """A positive integer, or None; the default where the field is left out."""
        if self.optional(name, default) is None:
            return None
        return self.integer(name, default=default)

    def section(self, name: str) -> "Fields | None":
        """An object within; None where there is none."""
        value = self.optional(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "must be an object")
        return Fields(value, f"{self.where}: {name}", self._ignored)

    def words(self, name: str, n: int, of: Mapping[str, T]) -> tuple[T, ...] | None:
        """A list of `n` words, as what they stand for; None where there is none."""
        value = self.optional(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != n or not all(isinstance(w, str) and w in of for w in value):
            self.refuse(name, f"must be a list of {n} words out of {', '.join(of)}")
        return tuple(of[word] for word in value)

    def require(self, name: str, *allowed: Any) -> None:
        """Refuses any other value than these; a field that is left out has the first."""
        value = self._get((name,), allowed[0]) if allowed[0] is not None else self.optional(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            shown = " or ".join(_json(each) for each in allowed)
            self.refuse(name, f"must be {shown}; this library computes nothing else")

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Raises ValueError with field, value and rule."""
        value = self.content.get(name)
        shown = "is missing and" if name not in self.content else f"= {_json(value)}"
        raise ValueError(f"{self.where}: {name} {shown} {rule}")

    def check_all_read(self) -> None:
        """Refuses a field that nothing has read, unless it is off (null, false, 0 or empty) or without effect.

        Raises:
          ValueError: names the first.
        """
        for name, value in self.content.items():
            if name in self._read | WITHOUT_EFFECT | self._ignored or not value:
                continue
            hint = nearest(name, self._read)
            raise ValueError(
                f"{self.where}: {name} = {_json(value)} is a field that this library does not know{hint}; if it says "
                f"nothing about the function of the model, ignore it: --ignore-field {name}"
            )

    def _get(self, names: tuple[str, ...], default: Any) -> Any:
        self._read.update(names)
        found = next((self.content[name] for name in names if self.content.get(name) is not None), default)
        if found is None:
            self.refuse(names[0], "must be given")
        return found


def read_config(directory: Path, ignored: Collection[str] = ()) -> Fields:
    """The fields of a folder's config.json.

    Raises:
      ValueError: there is none, it is too large, or no JSON object.
      OSError: it cannot be read.
    """
    file = directory / "config.json"
    if not directory.is_dir():
        raise ValueError(f"{directory} is no directory; name a folder with config.json and the model's tensors")
    if not file.is_file():
        raise ValueError(
            f"{directory} has no config.json; name a folder as the Hugging Face hub has it, or write one: "
            'the sizes of RWKV-7 follow from its tensors, for which {"model_type": "rwkv7"} is enough'
        )
    return Fields(read_json(file, dict), str(file), ignored)


def _json(value: Any) -> str:
    text = {True: "true", False: "false", None: "null"}[value] if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
